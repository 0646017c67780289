"""Whatever JSON arrives: a dataclass of ours, or ``WireError``; never another exception."""

from __future__ import annotations

import contextlib
import dataclasses
import json

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.process.wire import (
    Asked,
    Broken,
    Ended,
    Hello,
    Opening,
    Settled,
    WireError,
    encode_reply,
    parse_message,
)
from marlaas.engine.environments.protocol import EpisodeOutcome, FinalReward
from marlaas.engine.trajectories import Failure, TurnReward
from marlaas.plugins.host.channel import Record
from marlaas.plugins.host.process import reply_of
from marlaas.plugins.messages import Ask, Fork, Message, Reply, ToolCall
from marlaas.plugins.parameters import Parameter

ASK: Record = {"op": "ask", "id": 1, "episode": 2, "agent": "a", "messages": [{"role": "user", "content": "x"}]}
END: Record = {"op": "end", "episode": 2, "status": "ok", "rewards": {"a": 1}, "seconds": 0.5}
FAILURE: Record = {"message": "m", "file": "f.py", "line": 3, "traceback": "t"}
PARAMETER: Record = {"name": "digits", "type": "int", "default": 1, "required": False}
DESCRIBED: Record = {"name": "e", "timeout": 60, "description": "", "parameters": [PARAMETER]}

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def hello(**parameter: object) -> Record:
    return {"op": "hello", "environments": [DESCRIBED | {"parameters": [PARAMETER | parameter]}]}


def test_what_is_well_formed() -> None:
    assert parse_message(ASK) == Asked(1, 2, Ask("a", (Message("user", "x"),)))
    assert parse_message(END) == Ended(2, EpisodeOutcome("ok", {"a": 1.0}, seconds=0.5))
    paid = {"agent": "a", "turns": 2, "amount": 0.5, "name": "step"}
    ended = parse_message(END | {"paid": [paid]})
    assert ended == Ended(2, EpisodeOutcome("ok", {"a": 1.0}, seconds=0.5, paid=(TurnReward("a", 2, 0.5, "step"),)))
    final = parse_message({"op": "final", "episode": 2, "agent": "a", "reward": 0.5, "paid": [paid]})
    assert final == Settled(2, FinalReward("a", 0.5, (TurnReward("a", 2, 0.5, "step"),)))
    busy = parse_message({"op": "end", "episode": 2, "status": "timeout", "overloaded": True})
    assert busy == Ended(2, EpisodeOutcome("timeout", overloaded=True))
    assert parse_message({"op": "broken", "failure": FAILURE}) == Broken(Failure("m", "f.py", 3, "t"))
    assert isinstance(parse_message({"op": "hello", "environments": [DESCRIBED]}), Hello)
    assert parse_message({"op": "endpoint", "id": 4, "episode": 2, "agents": ["a"]}) == Opening(4, 2, ("a",))
    forked = parse_message(ASK | {"branch": 3, "fork": {"agent": "b", "branch": 1, "turns": 2}})
    assert forked == Asked(1, 2, Ask("a", (Message("user", "x"),), branch=3, fork=Fork("b", 1, 2)))


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


def test_unknown_keys_are_ignored() -> None:
    assert parse_message(ASK | {"\ud800": 1, "mood": {"x": []}}) == parse_message(ASK)


def test_lone_surrogates_do_not_pass() -> None:
    asked = parse_message(ASK | {"messages": [{"role": "user", "content": "\ud800"}], "tools": [{"x": ["\ud800"]}]})
    assert isinstance(asked, Asked)
    assert asked.ask.messages[0].content == "?" and asked.ask.tools == ({"x": ["?"]},)


def nested(depth: int) -> list[object]:
    value: list[object] = []
    for _ in range(depth - 1):
        value = [value]
    return value


@pytest.mark.parametrize("depth", [33, 40, 490, 990])
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


def test_what_is_nested_as_people_do_arrives() -> None:
    described = parse_message(hello(default=nested(32)))
    assert isinstance(described, Hello)
    assert dataclasses.asdict(described.environments[0].parameters[0])["default"] == nested(32)


def test_long_texts_are_cut_so_that_one_sees_it() -> None:
    long = "x" * 100_000
    ended = parse_message(
        END | {"invalid": long, "metrics": {"a": long}, "failure": dict.fromkeys(FAILURE, long) | {"line": 1}}
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
