"""Anthropic's messages, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from marlaas.engine import wire
from marlaas.engine.gateway.http.anthropic import Messages

from .scripted import KEY, Engine, echo, gateway, refusal_of, refusing, tool

PATH = "/v1/messages"
SAY: dict[str, Any] = {"model": "base", "max_tokens": 9, "messages": [{"role": "user", "content": "Hi"}]}
ADD = {"name": "add", "description": "Adds.", "input_schema": {"type": "object"}}


async def test_an_answer_and_what_the_engine_was_asked() -> None:
    body = {
        **SAY,
        "system": [{"type": "text", "text": "Be brief"}],
        "messages": [
            {"role": "user", "content": "Add"},
            {
                "role": "assistant",
                "content": [
                    {"type": "thinking", "thinking": "I add.", "signature": ""},
                    {"type": "text", "text": "Well"},
                    {"type": "tool_use", "id": "c", "name": "add", "input": {"a": 1}},
                ],
            },
            {
                "role": "user",
                "content": [
                    {"type": "tool_result", "tool_use_id": "c", "content": [{"type": "text", "text": "3"}]},
                    {"type": "text", "text": "Go on"},
                ],
            },
        ],
        "stop_sequences": ["END"],
        "top_k": 5,
        "tools": [ADD],
        "tool_choice": {"type": "any"},
        "thinking": {"type": "disabled"},
    }
    async with gateway(echo) as client:
        client.headers = {"x-api-key": KEY}
        status, answer = await client.post(PATH, body)
        asked = client.engine.asked[0]
    assert status == 200
    thought = {"type": "thinking", "thinking": "hm", "signature": ""}
    assert answer["content"] == [thought, {"type": "text", "text": "hello"}]
    assert answer["stop_reason"] == "end_turn" and answer["type"] == "message"
    assert answer["usage"]["input_tokens"] == 7 and answer["usage"]["cache_read_input_tokens"] == 4
    assert asked.key == KEY
    assert asked.messages == (
        wire.Message("system", "Be brief"),
        wire.Message("user", "Add"),
        wire.Message("assistant", "Well", "I add.", (wire.ToolCall("c", "add", '{"a":1}'),)),
        wire.Message("tool", "3", tool_call_id="c"),
        wire.Message("user", "Go on"),
    )
    function = {"name": "add", "description": "Adds.", "parameters": {"type": "object"}}
    assert asked.tools == ({"type": "function", "function": function},)
    wishes = wire.Wishes(max_tokens=9, top_k=5, stop=("END",), tool_choice="required", thinking=False)
    assert asked.wishes == wishes


async def test_a_stream_has_a_block_of_each_kind() -> None:
    async with gateway(echo) as client:
        events = await client.stream(PATH, {**SAY, "stream": True})
    assert [name for name, _ in events] == [data["type"] for _, data in events]
    assert [name for name, _ in events] == [
        "message_start",
        "content_block_start",
        "content_block_delta",
        "content_block_stop",
        "content_block_start",
        "content_block_delta",
        "content_block_delta",
        "content_block_stop",
        "message_delta",
        "message_stop",
    ]
    assert [data["index"] for _, data in events[1:8]] == [0, 0, 0, 1, 1, 1, 1]
    assert events[-2][1]["delta"]["stop_reason"] == "end_turn" and events[-2][1]["usage"]["output_tokens"] == 7


@pytest.mark.parametrize("stream", [False, True])
async def test_a_call_of_a_tool(stream: bool) -> None:
    async with gateway(tool) as client:
        body = {**SAY, "tools": [ADD], "stream": stream}
        if not stream:
            _, answer = await client.post(PATH, body)
            assert answer["stop_reason"] == "tool_use"
            assert answer["content"][1] == {"type": "tool_use", "id": "call_1", "name": "add", "input": {"a": 1}}
            return
        deltas = [data["delta"] for name, data in await client.stream(PATH, body) if name == "content_block_delta"]
    assert deltas == [
        {"type": "text_delta", "text": "Well"},
        {"type": "input_json_delta", "partial_json": '{"a":1}'},
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_a_text_that_ended_it_is_named(stream: bool) -> None:
    async def stopped(engine: Engine, request: Any) -> None:
        choice = wire.Choice(0, "he", "stop", stopped="END")
        engine.say(wire.Answered((choice,), "base", 3, 5, id=request.id))

    body = {**SAY, "stop_sequences": ["END"], "stream": stream}
    async with gateway(stopped) as client:
        if stream:
            told = (await client.stream(PATH, body))[-2][1]["delta"]
        else:
            _, told = await client.post(PATH, body)
    assert (told["stop_reason"], told["stop_sequence"]) == ("stop_sequence", "END")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"max_tokens": None}, "max_tokens"),
        ({"messages": [{"role": "user", "content": [{"type": "image"}]}]}, "text alone"),
        ({"messages": [{"role": "user", "content": [{"type": "tool_use"}]}]}, "lacks"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "robot"),
        ({"tools": [{"type": "bash_20250124", "name": "bash"}]}, "bash_20250124"),
        ({"tool_choice": {"type": "tool", "name": "x"}}, "'x'"),
        ({"tool_choice": {"type": "any"}}, "tool_choice is 'any', and there are no tools."),
        (
            {"tools": [ADD], "tool_choice": {"type": "required"}},
            "tool_choice is of type 'required'; auto, any, tool and none are known.",
        ),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], said: str) -> None:
    assert said in refusal_of(Messages, {**SAY, **change}).message


async def test_a_refusal_of_the_engine_says_when_to_come_back() -> None:
    async with gateway(refusing) as client:
        status, answer, headers = await client.posted(PATH, {**SAY, "stream": True})
    assert (status, headers["Retry-After"]) == (429, "8")
    error = {"type": "rate_limit_error", "message": "Your quota is used up."}
    assert answer == {"type": "error", "error": error}
