"""What a scoring process is asked arrives as it was meant; what it answers is validated like everything else."""

from __future__ import annotations

import json
from typing import Any

import pytest

from marlaas.engine.environments.process.wire import (
    Ended,
    WireError,
    encode_rank,
    encode_score,
    parse_message,
)
from marlaas.engine.environments.protocol import EpisodeOutcome, Ranking, Unscored
from marlaas.plugins.host.channel import Record, read_transcript
from marlaas.plugins.messages import Message, ToolCall
from marlaas.plugins.rewards import Transcript

TALK = Transcript(
    {
        "a": (Message("user", "ü"), Message("assistant", "", tool_calls=(ToolCall("f", {"x": [1]}),))),
        "b": (Message("tool", "3", name="f"),),
    }
)


def sent(record: Record) -> Record:
    received: Record = json.loads(json.dumps(record))
    return received


def test_a_transcript_arrives_as_it_was_said() -> None:
    record = sent(encode_score(3, "e", Unscored({"row": 1}, {"a": 0.5}), TALK, 2.0))
    assert (record["op"], record["episode"], record["task"], record["earned"]) == ("score", 3, {"row": 1}, {"a": 0.5})
    assert read_transcript(record["transcript"]) == TALK


def test_members_arrive_with_all_that_is_known_of_them() -> None:
    outcome = EpisodeOutcome("ok", {"a": 1.0}, {"p": 0.5}, {"m": "x"}, "bad move", task=[1], transcript=TALK)
    (member,) = sent(encode_rank(3, "e", [outcome], 2.0))["members"]
    assert read_transcript(member.pop("transcript")) == TALK
    assert member == {
        "task": [1], "rewards": {"a": 1.0}, "parts": {"p": 0.5}, "logged": {"m": "x"}, "invalid": "bad move"
    }  # fmt: skip


def test_an_episode_may_end_without_its_score() -> None:
    record = {"op": "end", "episode": 2, "status": "played", "task": {"q": "\ud800"}, "earned": {"a": 1}, "seconds": 1}
    assert parse_message(record) == Ended(2, Unscored({"q": "?"}, {"a": 1.0}, {}, 1.0))


def test_a_ranking_is_a_reward_for_each() -> None:
    record = {"op": "ranked", "episode": 2, "rewards": [{"a": 1}, {"a": 0.5}]}
    assert parse_message(record) == Ended(2, Ranking(({"a": 1.0}, {"a": 0.5})))


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    "record",
    [
        {"op": "end", "episode": 2, "status": "played", "earned": {"a": float("nan")}},
        {"op": "end", "episode": 2, "status": "played", "earned": {"a": True}},
        {"op": "end", "episode": 2, "status": "played", "earned": []},
        {"op": "end", "episode": 2, "status": "played", "task": nested(5000)},
        {"op": "ranked", "episode": 2, "rewards": [{}]},
        {"op": "ranked", "episode": 2, "rewards": [1.0]},
        {"op": "ranked", "episode": 2, "rewards": [{"a": float("inf")}]},
        {"op": "ranked", "episode": 2, "rewards": [{"a": 0}] * 4097},
        {"op": "ranked", "rewards": []},
        {"op": "ranked", "episode": 2},
    ],
)
def test_what_is_not(record: Record) -> None:
    with pytest.raises(WireError):
        parse_message(record)
