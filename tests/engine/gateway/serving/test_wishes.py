"""What clients send is checked once: what cannot be is refused with the parameter's name."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.gateway.serving.requests import calls, check_tools, forced, messages, options
from marlaas.engine.rollout.sampling import WHOLE, Truncation
from marlaas.engine.wire import Message, Refusal, ToolCall, Wishes
from marlaas.plugins.messages import Message as Said, ToolCall as Call

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
DEEP = f'{{"a": {"[" * 40}{"]" * 40}}}'
LOOK = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize("wishes", [{"top_p": 0.0}, {"top_p": 1.1}, {"min_p": 2.0}])
def test_a_truncation_that_cannot_be_is_refused(wishes: dict[str, Any]) -> None:
    with pytest.raises(Refusal) as refused:
        options(Wishes(**wishes))
    assert (refused.value.status, refused.value.where) == (400, *wishes) and refused.value.message.endswith(".")


def test_what_is_not_said_is_the_interfaces_usual() -> None:
    usual = options(Wishes())
    assert (usual.temperature, usual.truncation, usual.asked.max_tokens, usual.asked.n) == (1.0, WHOLE, None, 1)
    assert usual.wishes() is None and usual.wishes(prompt=True) is None
    assert options(Wishes(top_k=-1)).truncation == WHOLE
    assert options(Wishes(top_k=3, top_p=0.5, min_p=0.1)).truncation == Truncation(3, 0.5, 0.1)
    told = options(Wishes(logprobs=True, top_logprobs=2)).wishes(prompt=True)
    assert told is not None and (told.likeliest, told.prompt) == (2, True)


def test_seeds_repeat_and_differ() -> None:
    one, other = options(Wishes(seed=5, n=2)), options(Wishes(seed=5))
    assert one.seed_of(0, 0) == other.seed_of(0, 0) != one.seed_of(0, 1)
    assert one.seed_of(1, 0) != one.seed_of(0, 1)
    assert options(Wishes()).seed != options(Wishes()).seed


def test_a_conversation_as_the_template_takes_it() -> None:
    sent = (
        Message("system", "Be brief."),
        Message("user", "1+1?"),
        Message("assistant", "", "I add.", (ToolCall("call_1", "add", '{"a": 1}'),)),
        Message("tool", "2", tool_call_id="call_1"),
    )
    assert messages(sent, thinks=True) == (
        Said("system", "Be brief."),
        Said("user", "1+1?"),
        Said("assistant", "<think>\nI add.\n</think>\n\n", "", (Call("add", {"a": 1}),)),
        Said("tool", "2", "add"),
    )
    assert messages(sent, thinks=False)[2].content == ""


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
        messages(sent, thinks=False)
    assert (refused.value.status, refused.value.where) == (400, "messages")


def test_tools_that_are_too_deep() -> None:
    with pytest.raises(Refusal) as refused:
        check_tools((ADD, json.loads(DEEP)))
    assert refused.value.where == "tools"


def test_a_call_that_cannot_be_forced_is_refused() -> None:
    assert forced("", (ADD,)) == "" and forced("tool:add", (ADD, LOOK))
    for wish in ("required", "tool:add", "perhaps"):
        with pytest.raises(Refusal, match="tool_choice") as refused:
            forced(wish, ())
        assert refused.value.where == "tool_choice"


@given(st.lists(st.dictionaries(st.text(), st.integers() | st.text()), max_size=3))
def test_calls_have_ids_of_their_own(arguments: list[dict[str, Any]]) -> None:
    made = calls(Call("add", one) for one in arguments)
    assert [json.loads(one.arguments) for one in made] == arguments
    assert len({one.id for one in made}) == len(made) and all(one.id.startswith("call_") for one in made)
