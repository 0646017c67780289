"""What a process sends is read as the standard library would read it, whoever reads it."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.process.wire import cleaned, decode_body, encode_body

texts = st.text(st.characters(), max_size=20)
plain = st.none() | st.booleans() | st.integers() | st.floats() | texts
values = st.recursive(plain, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4))


@given(values, st.booleans())
def test_bodies_say_what_the_standard_library_reads(value: Any, escaped: bool) -> None:
    body = json.dumps(value, ensure_ascii=escaped).encode("utf-8", "surrogatepass")
    try:
        wanted = cleaned(json.loads(body.decode()))
    except UnicodeDecodeError:  # half a character, not escaped
        with pytest.raises(ValueError, match="utf-8"):
            decode_body(body)
        return
    assert repr(decode_body(body)) == repr(wanted)  # repr: NaN is not equal to itself, and 1.0 is to 1


@pytest.mark.parametrize("body", [b"", b"{", b"{]", b'{"a" 1}', b"\xff", b'"\x01"', b"nul", b'{"a": 1}}'])
def test_what_is_no_json_raises(body: bytes) -> None:
    with pytest.raises(ValueError):
        decode_body(body)


def test_what_is_nested_too_deeply_raises() -> None:
    with pytest.raises(RecursionError):
        decode_body(b"[" * 100_000)


@pytest.mark.parametrize("text", ["12", "é\u2028", "\ud800", ""])
def test_replies_arrive_as_they_were_sent(text: str) -> None:
    reply = {"op": "reply", "id": 1, "text": text, "finish": "stop", "turn": 0, "tool_calls": [], "thinking": ""}
    assert json.loads(encode_body(reply)) == reply


def test_numbers_without_end_are_sent_as_they_are() -> None:
    call = {"name": "wait", "arguments": {"seconds": float("inf")}}
    reply = {"op": "reply", "id": 1, "text": "", "finish": "tool", "turn": 0, "tool_calls": [call], "thinking": ""}
    start = {"op": "start", "config": {"most": float("inf")}}
    assert json.loads(encode_body(reply)) == reply and json.loads(encode_body(start)) == start
