"""Chat completions, over HTTP."""

from __future__ import annotations

import pytest

from marlaas.engine import wire
from marlaas.engine.gateway.http.openai import ChatCompletions

from .scripted import KEY, echo, gateway, refusal_of, tool

PATH = "/v1/chat/completions"
SAY = {"model": "base", "messages": [{"role": "user", "content": "Hi"}]}
ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}


async def test_an_answer_and_what_the_engine_was_asked() -> None:
    body = {
        **SAY,
        "messages": [
            {"role": "developer", "content": [{"type": "text", "text": "Be"}, {"type": "text", "text": "brief"}]},
            {"role": "user", "content": "Hi"},
            {
                "role": "assistant",
                "content": None,
                "reasoning_content": "I add.",
                "tool_calls": [{"id": "c", "type": "function", "function": {"name": "add", "arguments": "{}"}}],
            },
            {"role": "tool", "tool_call_id": "c", "content": "3"},
        ],
        "n": 2,
        "seed": 4,
        "stop": "END",
        "max_completion_tokens": 9,
        "tools": [ADD],
        "tool_choice": {"type": "function", "function": {"name": "add"}},
        "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "object"}}},
        "logprobs": True,
        "top_logprobs": 2,
        "a_key_that_nobody_knows": {"x": 1},
    }
    async with gateway(echo) as client:
        status, answer = await client.post(f"/e/solver{PATH}", body)
        asked = client.engine.asked[0]
    assert status == 200
    assert answer["object"] == "chat.completion" and answer["model"] == "17@best"
    first = answer["choices"][0]
    assert [choice["index"] for choice in answer["choices"]] == [0, 1]
    assert first["message"]["content"] == "hello" and first["message"]["reasoning_content"] == "hm"
    assert first["finish_reason"] == "stop"
    assert first["logprobs"]["content"][1] == {
        "token": "llo",
        "logprob": -1.25,
        "bytes": [108, 108, 111],
        "top_logprobs": [
            {"token": "y", "logprob": -0.25, "bytes": [121]},
            {"token": "llo", "logprob": -1.25, "bytes": [108, 108, 111]},
        ],
    }
    assert answer["usage"] == {
        "prompt_tokens": 11,
        "completion_tokens": 14,
        "total_tokens": 25,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    assert (asked.key, asked.agent, asked.model, asked.stream) == (KEY, "solver", "base", False)
    assert asked.messages == (
        wire.Message("system", "Be\nbrief"),
        wire.Message("user", "Hi"),
        wire.Message("assistant", "", "I add.", (wire.ToolCall("c", "add", "{}"),)),
        wire.Message("tool", "3", tool_call_id="c"),
    )
    assert asked.wishes == wire.Wishes(
        max_tokens=9,
        seed=4,
        stop=("END",),
        n=2,
        logprobs=True,
        top_logprobs=2,
        tool_choice="tool:add",
        schema='{"type":"object"}',
    )


async def test_a_call_of_a_tool() -> None:
    async with gateway(tool) as client:
        _, answer = await client.post(PATH, {**SAY, "tools": [ADD]})
    choice = answer["choices"][0]
    assert choice["finish_reason"] == "tool_calls"
    call = {"id": "call_1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
    assert choice["message"]["tool_calls"] == [call]


async def test_a_stream_tells_all_once_and_what_it_cost() -> None:
    body = {**SAY, "stream": True, "stream_options": {"include_usage": True}, "n": 2, "logprobs": True}
    async with gateway(echo) as client:
        events = await client.stream(PATH, body)
    assert events.pop() == ("", None)
    usage = events.pop()[1]
    assert usage["choices"] == [] and usage["usage"]["completion_tokens"] == 14
    for index in range(2):
        rows = [data["choices"][0] for _, data in events if data["choices"][0]["index"] == index]
        assert rows[0]["delta"] == {"role": "assistant", "content": ""}
        assert "".join(row["delta"].get("content", "") for row in rows) == "hello"
        assert "".join(row["delta"].get("reasoning_content", "") for row in rows) == "hm"
        tokens = [token["token"] for row in rows if row["logprobs"] for token in row["logprobs"]["content"]]
        assert tokens == ["he", "llo"]
        assert [row["finish_reason"] for row in rows] == [None] * (len(rows) - 1) + ["stop"]


async def test_a_streamed_call_of_a_tool() -> None:
    async with gateway(tool) as client:
        events = await client.stream(PATH, {**SAY, "stream": True, "tools": [ADD]})
    deltas = [data["choices"][0]["delta"] for _, data in events if data]
    calls = [call for delta in deltas for call in delta.get("tool_calls", ())]
    function = {"name": "add", "arguments": '{"a": 1}'}
    assert calls == [{"index": 0, "id": "call_1", "type": "function", "function": function}]
    assert "".join(delta.get("content", "") for delta in deltas) == "Well"


@pytest.mark.parametrize(
    ("change", "where", "said"),
    [
        ({"temperature": "hot"}, "temperature", "Expected `float"),
        ({"temperature": -0.1}, "temperature", ">= 0"),
        ({"presence_penalty": 2.5}, "presence_penalty", "<= 2"),
        ({"n": 0}, "n", ">= 1"),
        ({"n": 65}, "n", "<= 64"),
        ({"max_tokens": -1}, "max_tokens", ">= 1"),
        ({"messages": []}, "messages", "empty"),
        ({"messages": [{"role": "robot", "content": "x"}]}, "messages[0].role", "robot"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content", "text alone"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id", "tool_call_id"),
        ({"top_logprobs": 3}, "top_logprobs", "logprobs"),
        ({"tools": [{"type": "web_search"}]}, "tools[0]", "no function"),
        ({"tool_choice": {"type": "function", "function": {"name": "gone"}}}, "tool_choice", "'gone'"),
        ({"tool_choice": "required"}, "tool_choice", "no tools"),
        ({"response_format": {"type": "json_schema", "json_schema": {}}}, "response_format", "no schema"),
        ({"response_format": {"type": "xml"}}, "response_format", "'xml'"),
        ({"functions": [{}]}, "functions", "send tools"),
        ({"logit_bias": {"5": 1}}, "logit_bias", "not supported"),
        ({"stop": ["a"] * 17}, "stop", "16"),
        ({"stop": "a" * 501}, "stop", "500"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs", "<= 20"),
        ({"tools": [{"function": {"name": "x" * 129}}]}, "tools[0]", "128"),
        ({"seed": 1 << 70}, "seed", "<="),
        ({"chat_template_kwargs": {"enable_thinking": "no"}}, "chat_template_kwargs.enable_thinking", "bool"),
    ],
)
def test_what_is_wrong_is_named(change: dict[str, object], where: str, said: str) -> None:
    refusal = refusal_of(ChatCompletions, {**SAY, **change})
    assert refusal.where == where and said in refusal.message


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b"\xff", b'{"model": "\\ud800"', b"[" * 100_000, b'{"model": 1}'])
def test_a_body_that_is_no_request(body: bytes) -> None:
    assert refusal_of(ChatCompletions, body).message


async def test_thinking_by_either_word() -> None:
    async with gateway(echo) as client:
        for change in (
            {"reasoning_effort": "none"},
            {"reasoning_effort": "high"},
            {"chat_template_kwargs": {"enable_thinking": False}},
            {"chat_template_kwargs": {"enable_thinking": None, "another": 3}},
            {},
        ):
            await client.post(PATH, {**SAY, **change})
        assert [asked.wishes.thinking for asked in client.engine.asked] == [False, True, False, None, None]
