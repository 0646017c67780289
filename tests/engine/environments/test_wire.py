"""Messages and heartbeats of plugin processes: whatever arrives is one of ours, or ``WireError``."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import socket
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.process.launch import HUNG_AFTER, STILL_AFTER, Pulse, judged
from marlaas.engine.environments.process.wire import (
    Beat,
    Ended,
    Hello,
    WireError,
    cleaned,
    decode_beat,
    decode_body,
    encode_body,
    encode_reply,
    parse_message,
)
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.plugins.host.channel import Record
from marlaas.plugins.host.process import reply_of
from marlaas.plugins.messages import Reply, ToolCall
from marlaas.plugins.parameters import Parameter

ASK: Record = {"op": "ask", "id": 1, "episode": 2, "agent": "a", "messages": [{"role": "user", "content": "x"}]}

END: Record = {"op": "end", "episode": 2, "status": "ok", "rewards": {"a": 1}, "seconds": 0.5}

PARAMETER: Record = {"name": "digits", "type": "int", "default": 1, "required": False}

DESCRIBED: Record = {"name": "e", "timeout": 60, "description": "", "parameters": [PARAMETER]}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def hello(**parameter: object) -> Record:
    return {"op": "hello", "environments": [DESCRIBED | {"parameters": [PARAMETER | parameter]}]}


def test_bounds_and_choices_arrive() -> None:
    limits: tuple[Record, ...] = ({"low": 1, "high": 4.5}, {"low": None, "high": None}, {"choices": ["a", 2]})
    for limit in limits:
        described = parse_message(hello(**limit))
        assert isinstance(described, Hello)
        (parameter,) = described.environments[0].parameters
        assert parameter == Parameter(**{**PARAMETER, **limit, "choices": tuple(limit.get("choices", ()))})
        assert type(parameter.low) is type(limit.get("low")), "people read it as its author wrote it"


def test_a_reply_arrives_as_it_was_given() -> None:
    reply = Reply("four", "tool", 2, (ToolCall("add", {"a": [1]}),), "two and two")
    assert reply_of(json.loads(json.dumps(encode_reply(7, reply)))) == reply
    assert parse_message(ASK | {"\ud800": 1, "mood": {"x": []}}) == parse_message(ASK), "unknown keys are ignored"


@pytest.mark.parametrize(
    "record",
    [
        {},
        {"op": []},
        {"op": "\ud800"},
        {"op": "hello", "environments": []},
        {"op": "hello", "environments": [DESCRIBED, DESCRIBED]},
        {"op": "hello", "environments": [DESCRIBED | {"scored": "yes"}]},
        {"op": "hello", "environments": [DESCRIBED | {"agents": ["x" * 10_000]}]},
        {"op": "hello", "environments": [DESCRIBED | {"agents": [f"a{number}" for number in range(257)]}]},
        {"op": "hello", "environments": [DESCRIBED | {"agents": [3]}]},
        {"op": "hello", "environments": [DESCRIBED | {"agents": "first"}]},
        ASK | {"messages": []},
        ASK | {"messages": [{"role": "root", "content": "x"}]},
        ASK | {"max_tokens": True},
        ASK | {"max_tokens": -1},
        ASK | {"agent": "a" * 1000},
        ASK | {"tools": [1]},
        END | {"rewards": {}},
        END | {"rewards": {"a": float("inf")}},
        END | {"rewards": {"a": 10**400}},
        END | {"rewards": {"a": 1e200}},
        END | {"parts": {"a": -1e200}},
        END | {"metrics": {"a": 1e200}},
        END | {"rewards": {"a": "1"}},
        END | {"status": "error"},
        END | {"metrics": {str(n): n for n in range(1000)}},
        END | {"episode": -1},
        END | {"seconds": float("nan")},
        END | {"paid": [{"agent": "a", "turns": 1, "amount": 0}] * 1001},
        END | {"paid": [{"agent": "a", "turns": 1, "amount": 1e10}]},
        ASK | {"branch": -1},
        ASK | {"branch": True},
        ASK | {"fork": []},
        ASK | {"fork": {"agent": "a", "branch": 0}},
        ASK | {"fork": {"agent": "a", "branch": 0, "turns": 0}},
        hello(low=float("inf")),
        hello(low=float("nan")),
        hello(high=10**400),
        hello(low=True),
        hello(required=1),
        hello(high="4"),
        hello(choices=[1.5]),
        hello(choices=[True]),
        hello(choices="ab"),
        hello(choices=[0] * 1000),
        {"op": "end", "episode": 2, "status": "played", "earned": {"a": float("nan")}},
        {"op": "end", "episode": 2, "status": "played", "earned": {"a": True}},
        {"op": "end", "episode": 2, "status": "played", "earned": []},
        {"op": "ranked", "episode": 2, "rewards": [{}]},
        {"op": "ranked", "episode": 2, "rewards": [1.0]},
        {"op": "ranked", "episode": 2, "rewards": [{"a": float("inf")}]},
        {"op": "ranked", "episode": 2, "rewards": [{"a": 0}] * 4097},
        {"op": "ranked", "rewards": []},
        {"op": "ranked", "episode": 2},
    ],
)
def test_what_is_refused(record: Record) -> None:
    with pytest.raises(WireError):
        parse_message(record)


@pytest.mark.parametrize(
    ("record", "field"),
    [
        (ASK | {"agent": "a" * 1000}, "agent"),
        (ASK | {"messages": [{"role": "x" * 100_000, "content": "x"}]}, "messages[0].role"),
        (END | {"rewards": {"a": 1e200}}, "rewards"),
        (hello(choices=[1.5]), "environments[0].parameters[0].choices[0]"),
    ],
)
def test_a_fault_names_its_field_and_quotes_little(record: Record, field: str) -> None:
    with pytest.raises(WireError) as caught:
        parse_message(record)
    assert f"$.message.{field}" in str(caught.value) and len(str(caught.value)) < 400


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [33, 990])
def test_what_is_nested_deeper_than_anybody_does_is_refused(depth: int) -> None:
    """Past some hundreds, copying it as ``dataclasses.asdict`` does ends the engine."""
    call = {"name": "f", "arguments": {"x": nested(depth - 1)}}
    records: tuple[Record, ...] = (
        hello(default=nested(depth)),
        {"op": "end", "episode": 2, "status": "played", "task": nested(depth)},
        END | {"task": nested(depth)},
        ASK | {"tools": [{"x": nested(depth - 1)}]},
        ASK | {"messages": [{"role": "assistant", "content": "", "tool_calls": [call]}]},
    )
    for record in records:
        with pytest.raises(WireError, match="nested"):
            parse_message(record)
    described = parse_message(hello(default=nested(32)))
    assert isinstance(described, Hello)
    assert dataclasses.asdict(described.environments[0].parameters[0])["default"] == nested(32)


def test_long_texts_are_cut_so_that_one_sees_it() -> None:
    long = "x" * 100_000
    ended = parse_message(
        END
        | {
            "invalid": long,
            "metrics": {"a": long},
            "failure": dict.fromkeys(("message", "file", "traceback"), long) | {"line": 1},
        }
    )
    assert isinstance(ended, Ended) and isinstance(ended.outcome, EpisodeOutcome)
    failure = ended.outcome.failure
    assert failure is not None and len(failure.traceback) == 10_000
    for text in (ended.outcome.invalid, ended.outcome.metrics["a"], failure.message, failure.file):
        assert isinstance(text, str) and len(text) == 1000 and text.endswith("x…")
    described = parse_message({"op": "hello", "environments": [DESCRIBED | {"description": long}]})
    assert isinstance(described, Hello) and len(described.environments[0].description) == 10_000


@given(st.sampled_from([ASK, END, {"op": "hello", "environments": [DESCRIBED]}]), st.data())
def test_any_field_may_be_anything(record: Record, data: st.DataObject) -> None:
    key = data.draw(st.sampled_from([*record, "tools", "stop", "max_tokens", "parts", "metrics", "failure", "invalid"]))
    with contextlib.suppress(WireError):
        parse_message(record | {key: data.draw(json_values)})


def sent(record: Record) -> Record:
    received: Record = json.loads(json.dumps(record))
    return received


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


def test_messages_arrive_as_they_were_sent() -> None:
    with pytest.raises(RecursionError):
        decode_body(b"[" * 100_000)
    call = {"name": "wait", "arguments": {"seconds": float("inf")}}
    sendings: list[Record] = [{"op": "start", "config": {"most": float("inf")}}]
    for text in ("12", "é\u2028", "\ud800", ""):
        reply = {"op": "reply", "id": 1, "text": text, "finish": "stop", "turn": 0, "thinking": ""}
        sendings += [reply | {"tool_calls": []}, reply | {"tool_calls": [call]}]
    for message in sendings:
        assert json.loads(encode_body(message)) == message


@pytest.fixture
def ends() -> Iterator[tuple[Pulse, socket.socket]]:
    ours, theirs = socket.socketpair()
    pulse = Pulse(ours)
    yield pulse, theirs
    pulse.close()
    theirs.close()


@given(st.floats(0, STILL_AFTER - 1), st.floats(0, 5), st.integers(0, 512))
def test_a_process_without_a_core_is_left_alone(wall: float, computed: float, episodes: int) -> None:
    assert judged(wall, computed, episodes) == ""


def test_what_computes_in_silence_is_hung() -> None:
    assert judged(30.0, HUNG_AFTER, 0) == "hung" and judged(30.0, HUNG_AFTER, 64) == ""
    assert judged(30.0, HUNG_AFTER + 4, 64) == "hung" and judged(STILL_AFTER, 0.0, 64) == "still"
    assert judged(60.0, 119.0, 1, allowed=60.0) == "" and judged(60.0, 121.0, 1, allowed=60.0) == "hung"


def test_the_newest_answer_counts(ends: tuple[Pulse, socket.socket]) -> None:
    pulse, process = ends
    assert pulse.answer() is None
    pulse.ask()
    assert process.recv(100) == b"?"
    process.sendall(b'{"stubborn":false}\n{"stubborn":true,"held":0.5}\n{"stub')
    assert pulse.answer() == Beat(True, 0.5)
    process.sendall(b'born":false}\n')
    assert pulse.answer() == Beat(False)
    assert pulse.answer() is None


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[" * 10_000, b'{"held":-1,"stubborn":false}', b'{"held":1e999,"stubborn":false}', b"\xff"],
)
def test_what_is_no_answer(line: bytes) -> None:
    assert decode_beat(line) is None


def test_a_flood_of_answers_is_no_burden(ends: tuple[Pulse, socket.socket]) -> None:
    pulse, process = ends
    process.setblocking(False)
    sent = 0
    for _ in range(10_000):
        try:
            sent += process.send(b"x" * 1000)
        except BlockingIOError:
            break
    assert pulse.answer() is None and len(pulse._rest) <= 32 << 10 < sent
