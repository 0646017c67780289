"""Properties of what is read: whatever bytes come, an interface understands them or refuses them with 400."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.engine import wire
from marlaas.engine.gateway.http.anthropic import Messages
from marlaas.engine.gateway.http.exchange import Exchange, Part, decode
from marlaas.engine.gateway.http.openai import ChatCompletions, Completions
from marlaas.engine.gateway.http.responses import Responses
from marlaas.engine.wire import Refusal

from .scripted import events

INTERFACES: dict[Callable[[bytes, str], Exchange], dict[str, Any]] = {
    ChatCompletions: {"model": "m", "messages": [{"role": "user", "content": "x"}]},
    Completions: {"model": "m", "prompt": "x"},
    Responses: {"model": "m", "input": "x"},
    Messages: {"model": "m", "max_tokens": 3, "messages": [{"role": "user", "content": "x"}]},
}
# fmt: off
KEYS = [
    "messages", "input", "prompt", "system", "instructions", "content", "model", "max_tokens", "temperature",
    "top_p", "top_k", "n", "seed", "stop", "logprobs", "top_logprobs", "tools", "tool_choice",
    "response_format", "text", "thinking", "reasoning", "stream", "stream_options", "echo", "type", "role",
    "format",
]
WORDS = st.sampled_from([
    "user", "assistant", "tool", "system", "text", "input_text", "tool_use", "tool_result", "function",
    "function_call", "function_call_output", "reasoning", "message", "auto", "none", "required", "json_object",
    "json_schema", "x",
])
# fmt: on
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | WORDS | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(KEYS) | st.text(), inner, max_size=6),
    max_leaves=12,
)
each = pytest.mark.parametrize("interface", INTERFACES)


def understood(interface: Callable[[bytes, str], Exchange], body: bytes) -> Exchange | None:
    try:
        exchange = interface(body, "k")
    except Refusal as refusal:
        assert refusal.status == 400 and refusal.message.endswith(".") and refusal.code
        return None
    return exchange


@each
@given(body=st.binary(max_size=200))
def test_bytes_are_never_a_crash(interface: Callable[[bytes, str], Exchange], body: bytes) -> None:
    understood(interface, body)


@each
@given(changes=st.dictionaries(st.sampled_from(KEYS), JSON, max_size=4))
def test_json_is_understood_or_refused(interface: Callable[[bytes, str], Exchange], changes: dict[str, Any]) -> None:
    body = json.dumps({**INTERFACES[interface], **changes}).encode("utf-8", "surrogatepass")
    exchange = understood(interface, body)
    if exchange is not None:
        frame = wire.frame(exchange.asked)
        assert wire.request(frame[4:]) == exchange.asked


@each
@given(text=st.text(st.characters(codec="utf-8")), pieces=st.lists(st.integers(0, 9), max_size=5))
def test_a_stream_tells_the_text_however_it_is_cut(
    interface: Callable[[bytes, str], Exchange], text: str, pieces: list[int]
) -> None:
    exchange = interface(json.dumps({**INTERFACES[interface], "stream": True}).encode(), "k")
    sent = b"".join(exchange.opening())
    at = 0
    for size in pieces:
        sent += exchange.more(wire.Piece(1, 0, text[at : at + size]))
        at += size
    sent += exchange.end(wire.Answered((wire.Choice(0, text, "stop"),), "m", 1, 1))
    told = "".join(delta(data) for _, data in events(sent.decode()))
    assert told == text


def delta(data: dict[str, Any] | None) -> str:
    """The text in an event of any interface."""
    if data is None:
        return ""
    if "choices" in data:
        return "".join(str(row.get("text") or row.get("delta", {}).get("content") or "") for row in data["choices"])
    if data["type"] == "response.output_text.delta":
        return str(data["delta"])
    return str(data["delta"].get("text", "")) if data["type"] == "content_block_delta" else ""


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        (r'"a\ud83d b"', "a\ufffd b"),
        (r'"\uDE00\ud83d"', "\ufffd\ufffd"),
        (r'"\ud83d\ude00"', "\U0001f600"),
        (r'"\\ud83d"', "\\ud83d"),
    ],
)
def test_half_a_character_is_valid_json(sent: str, text: str) -> None:
    body = f'{{"type": "text", "text": {sent}}}'.encode()
    assert decode(body, Part).text == text


def test_what_is_no_json_beside_half_a_character_is_refused() -> None:
    for body in (rb'{"text": "\ud83d"', rb'{"type": "x", "text": NaN, "a": "\ud83d"}'):
        with pytest.raises(Refusal, match="The body is no JSON"):
            decode(body, Part)
