"""What clients send is checked once: what cannot be is refused with the parameter's name."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.api.serving.requests import calls, forced, manner, messages, tools
from marlaas.engine.gateway.answerer import Refusal
from marlaas.engine.gateway.wire import Message, ToolCall, Wishes
from marlaas.engine.rollout.sampling import WHOLE, Truncation
from marlaas.plugins.messages import Message as Said, ToolCall as Call

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object", "properties": {"a": {}}}}}
DEEP = f'{{"a": {"[" * 40}{"]" * 40}}}'
LOOK = {"type": "function", "function": {"name": "look"}}


@pytest.mark.parametrize(
    ("wishes", "where"),
    [
        ({"temperature": -0.1}, "temperature"),
        ({"temperature": math.nan}, "temperature"),
        ({"temperature": 1e9}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_p": 1.1}, "top_p"),
        ({"min_p": 2.0}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 65}, "n"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"logprobs": True, "top_logprobs": 21}, "logprobs"),
        ({"presence_penalty": 2.5}, "presence_penalty"),
        ({"frequency_penalty": -math.inf}, "frequency_penalty"),
        ({"stop": ("x" * 501,)}, "stop"),
        ({"stop": tuple("abcdefghijklmnopqr")}, "stop"),
        ({"schema": "{"}, "response_format"),
        ({"schema": "3"}, "response_format"),
    ],
)
def test_what_cannot_be_is_refused(wishes: dict[str, Any], where: str) -> None:
    with pytest.raises(Refusal) as refused:
        manner(Wishes(**wishes))
    assert (refused.value.status, refused.value.where) == (400, where) and refused.value.message.endswith(".")


def test_what_is_not_said_is_the_interfaces_usual() -> None:
    usual = manner(Wishes())
    assert (usual.temperature, usual.truncation, usual.max_tokens, usual.choices) == (1.0, WHOLE, None, 1)
    assert usual.wishes() is None and usual.wishes(prompt=True) is None
    assert manner(Wishes(top_k=-1, stop=("", "x"))).stops == ("x",)
    assert manner(Wishes(top_k=3, top_p=0.5, min_p=0.1)).truncation == Truncation(3, 0.5, 0.1)
    told = manner(Wishes(logprobs=True, top_logprobs=2)).wishes(prompt=True)
    assert told is not None and (told.likeliest, told.prompt) == (2, True)


def test_seeds_repeat_and_differ() -> None:
    one, other = manner(Wishes(seed=5, n=2)), manner(Wishes(seed=5))
    assert one.seed_of(0, 0) == other.seed_of(0, 0) != one.seed_of(0, 1)
    assert one.seed_of(1, 0) != one.seed_of(0, 1)
    assert manner(Wishes()).seed != manner(Wishes()).seed


def test_a_conversation_as_the_template_takes_it() -> None:
    sent = (
        Message("developer", "Be brief."),
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
        (),
        (Message("robot", "x"),),
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


@pytest.mark.parametrize("tool", [{}, {"type": "web_search"}, {"type": "function", "function": {"name": ""}}, "x", 3])
def test_tools_that_cannot_be(tool: Any) -> None:
    with pytest.raises(Refusal) as refused:
        tools((ADD, tool))
    assert refused.value.where == "tools" and "Tool 1" in refused.value.message


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
