"""What clients send is checked once: what cannot be is refused with the parameter's name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.rollout.programs import SamplingOptions, calls_of, messages_of, options_of, tools_of
from marlaas.engine.samplers.sampling import WHOLE, Truncation
from marlaas.engine.wire import Chat, Message, Refusal, ToolCall, Wishes
from marlaas.plugins.messages import Message as Said, ToolCall as Call

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
DEEP = f'{{"a": {"[" * 40}{"]" * 40}}}'
LOOK = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize("wishes", [{"top_p": 0.0}, {"top_p": 1.1}, {"min_p": 2.0}])
def test_a_truncation_that_cannot_be_is_refused(wishes: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        options_of(Wishes(**wishes), ())
    assert (refused.value.status, refused.value.where) == (400, *wishes) and refused.value.message.endswith(".")


def test_what_is_not_said_is_the_tasks() -> None:
    assert options_of(Wishes(), ()) == SamplingOptions()
    assert options_of(Wishes(top_k=-1), ()).truncation == WHOLE
    assert options_of(Wishes(top_k=3, top_p=0.5, min_p=0.1), ()).truncation == Truncation(3, 0.5, 0.1)
    told = options_of(Wishes(logprobs=True, top_logprobs=2), ()).wishes
    assert told is not None and told.likeliest == 2


def test_a_conversation_as_the_template_takes_it() -> None:
    sent = (
        Message("system", "Be brief."),
        Message("user", "1+1?"),
        Message("assistant", "", "I add.", (ToolCall("call_1", "add", '{"a": 1}'),)),
        Message("tool", "2", tool_call_id="call_1"),
    )
    assert messages_of(sent, thinks=True) == (
        Said("system", "Be brief."),
        Said("user", "1+1?"),
        Said("assistant", "<think>\nI add.\n</think>\n\n", "", (Call("add", {"a": 1}),)),
        Said("tool", "2", "add"),
    )
    assert messages_of(sent, thinks=False)[2].content == ""


@pytest.mark.parametrize(
    "sent",
    [
        (Message("assistant", "", tool_calls=(ToolCall("c", "add", "[1]"),)),),
        (Message("assistant", "", tool_calls=(ToolCall("c", "add", "{"),)),),
        (Message("assistant", "", tool_calls=(ToolCall("c", "add", "[" * 100_000),)),),
        (
            Message(
                "assistant",
                "",
                tool_calls=(ToolCall("c", "add", json.dumps({"a": [[]]}).replace("[]", "[" * 40 + "]" * 40)),),
            ),
        ),
    ],
)
def test_messages_that_cannot_be(sent: tuple[Message, ...]) -> None:
    with pytest.raises(Refusal) as refused:
        messages_of(sent, thinks=False)
    assert (refused.value.status, refused.value.where) == (400, "messages")


def test_tools_that_are_too_deep() -> None:
    with pytest.raises(Refusal) as refused:
        tools_of(Chat(0, "", "", (), (ADD, json.loads(DEEP))))
    assert refused.value.where == "tools"


def test_a_call_that_cannot_be_forced_is_refused() -> None:
    assert options_of(Wishes(tool_choice="tool:add"), (ADD, LOOK)).forced
    for wish in ("required", "tool:add", "perhaps"):
        with pytest.raises(Refusal, match="tool_choice") as refused:
            options_of(Wishes(tool_choice=wish), ())
        assert refused.value.where == "tool_choice"


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text()), max_size=3))
def test_calls_keep_their_arguments(arguments: list[dict[str, Any]]) -> None:
    made = calls_of([Call("add", one) for one in arguments], lambda: "call_1")
    assert [json.loads(one.arguments) for one in made] == arguments
