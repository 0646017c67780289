"""The Responses interface, over HTTP."""

from __future__ import annotations

from typing import Any

import pytest

from marlaas.engine import wire
from marlaas.engine.gateway.http.responses import Responses

from .scripted import Engine, echo, gateway, refusal_of, tool

PATH = "/v1/responses"
ADD = {"type": "function", "name": "add", "parameters": {"type": "object"}, "strict": True}


async def test_an_answer_and_what_the_engine_was_asked() -> None:
    body = {
        "model": "base",
        "instructions": "Be brief",
        "input": [
            {"role": "user", "content": [{"type": "input_text", "text": "Add"}]},
            {"type": "reasoning", "id": "rs", "summary": [], "content": [{"type": "reasoning_text", "text": "I add."}]},
            {"type": "message", "role": "assistant", "content": [{"type": "output_text", "text": "Well"}]},
            {"type": "function_call", "call_id": "c", "name": "add", "arguments": '{"a":1}'},
            {"type": "function_call", "call_id": "d", "name": "add", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "3"},
            {"type": "function_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "4"}]},
            {"role": "assistant", "content": "One"},
            {"role": "assistant", "content": "Two"},
        ],
        "tools": [ADD],
        "tool_choice": "required",
        "max_output_tokens": 5,
        "text": {"format": {"type": "json_schema", "name": "x", "schema": {"type": "object"}}},
        "include": ["message.output_text.logprobs"],
    }
    async with gateway(echo) as client:
        status, answer = await client.post(PATH, body)
        asked = client.engine.asked[0]
    assert status == 200
    assert [item["type"] for item in answer["output"]] == ["reasoning", "message"]
    part = answer["output"][1]["content"][0]
    assert part["text"] == "hello" and [row["token"] for row in part["logprobs"]] == ["he", "llo"]
    assert answer["status"] == "completed" and answer["usage"]["total_tokens"] == 18
    calls = (wire.ToolCall("c", "add", '{"a":1}'), wire.ToolCall("d", "add", "{}"))
    assert asked.messages == (
        wire.Message("system", "Be brief"),
        wire.Message("user", "Add"),
        wire.Message("assistant", "Well", "I add.", calls),
        wire.Message("tool", "3", tool_call_id="c"),
        wire.Message("tool", "4", tool_call_id="d"),
        wire.Message("assistant", "One"),
        wire.Message("assistant", "Two"),
    )
    assert asked.wishes.tool_choice == "required" and asked.wishes.schema == '{"type":"object"}'


async def test_what_was_answered_can_be_sent_back() -> None:
    async with gateway(tool) as client:
        _, answer = await client.post(PATH, {"model": "base", "input": "Add", "tools": [ADD]})
        sent = [{"role": "user", "content": "Add"}, *answer["output"]]
        await client.post(PATH, {"model": "base", "input": sent, "tools": [ADD]})
        call = wire.ToolCall("call_1", "add", '{"a": 1}')
        assert client.engine.asked[1].messages[1] == wire.Message("assistant", "Well", tool_calls=(call,))


@pytest.mark.parametrize("script", [echo, tool])
async def test_a_stream_ends_with_what_it_told(script: Any) -> None:
    async with gateway(script) as client:
        events = await client.stream(PATH, {"model": "base", "input": "Hi", "stream": True, "tools": [ADD]})
    assert [data["sequence_number"] for _, data in events] == list(range(len(events)))
    assert [name for name, _ in events] == [data["type"] for _, data in events]
    assert [name for name, _ in events][:2] == ["response.created", "response.in_progress"]
    response = events[-1][1]["response"]
    assert events[-1][0] == "response.completed"
    done = [data["item"] for name, data in events if name == "response.output_item.done"]
    assert response["output"] == done
    text = "".join(data["delta"] for name, data in events if name == "response.output_text.delta")
    message = next(item for item in done if item["type"] == "message")
    assert message["content"][0]["text"] == text == ("hello" if script is echo else "Well")
    if script is tool:
        assert done[-1]["arguments"] == '{"a": 1}' and done[-1]["call_id"] == "call_1"


async def test_an_answer_that_was_cut_is_incomplete() -> None:
    async def cut(engine: Any, request: Any) -> None:
        engine.say(wire.Answered((wire.Choice(0, "hel", "length"),), "base", 1, 3, id=request.id))

    async with gateway(cut) as client:
        _, answer = await client.post(PATH, {"model": "base", "input": "Hi"})
        events = await client.stream(PATH, {"model": "base", "input": "Hi", "stream": True})
    assert answer["status"] == "incomplete"
    assert answer["incomplete_details"] == {"reason": "max_output_tokens"}
    assert events[-1][0] == "response.incomplete"


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"input": []}, "input"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]"),
        ({"input": [{"role": "user", "content": [{"type": "input_image"}]}]}, "input[0].content"),
        ({"input": [{"type": "function_call", "name": "x"}]}, "input[0]"),
        ({"previous_response_id": "resp_1"}, "previous_response_id"),
        ({"conversation": "c"}, "conversation"),
        ({"background": True}, "background"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, Any], where: str) -> None:
    assert refusal_of(Responses, {"model": "base", "input": "x", **change}).where == where


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engines_refusals_name_its_parameters(stream: bool) -> None:
    async def refuses(engine: Engine, request: Any) -> None:
        before = (wire.Piece(request.id, 0, text="he"),) if stream else ()
        engine.say(*before, wire.Refused(request.id, 400, "invalid_request", "No.", "response_format"))

    async with gateway(refuses) as client:
        body = {"model": "base", "input": "Add", "stream": stream}
        told = (await client.stream(PATH, body))[-1][1] if stream else (await client.post(PATH, body))[1]["error"]
    assert (told["message"], told["param"]) == ("No.", "text.format")
