"""What score functions and rankings see, what they may return, and how they are declared."""

from __future__ import annotations

import math
from typing import Any

import pytest

from marlaas.plugins import Episode, Member, Message, Score, Transcript, env
from marlaas.plugins.rewards import ranks_of, score_of, sendable

TALK = Transcript({"agent": (Message("user", "2+2="), Message("assistant", "5"), Message("assistant", "4"))})
TRANSCRIPT = Transcript({"first": (Message("assistant", "a"),), "second": (Message("assistant", "b"),)})


def test_the_only_agent_needs_no_name() -> None:
    assert [message.content for message in TALK.messages] == ["2+2=", "5", "4"]
    assert [message.content for message in TALK.replies] == ["5", "4"]
    assert TALK.text == "4"
    assert Transcript({}).text == "" and Transcript({}).messages == ()
    assert Member(None, TALK, {"agent": 0.5}).reward == 0.5


def test_several_agents_are_named() -> None:
    with pytest.raises(ValueError, match=r"several agents.*first, second"):
        _ = TRANSCRIPT.text
    with pytest.raises(ValueError, match=r"several agents.*first, second"):
        _ = Member(None, TRANSCRIPT, {"first": 1.0, "second": 0.0}).reward


@pytest.mark.parametrize(
    ("result", "rewards"),
    [
        (True, {"first": 1.0, "second": 1.5}),
        (Score(0.25, style=1), {"first": 0.25, "second": 0.75}),
        ({"first": 1}, {"first": 1.0, "second": 0.5}),
        ({"first": 1, "second": Score(2.0)}, {"first": 1.0, "second": 2.5}),
    ],
)
def test_a_score_is_what_may_be_returned_and_earnings_are_added(result: object, rewards: dict[str, float]) -> None:
    assert score_of(result, ("first", "second"), {"second": 0.5}).by_agent == rewards


@pytest.mark.parametrize(
    ("result", "says"),
    [
        (None, "returned None"),
        ("1.0", "must be a number, not str"),
        (math.nan, "must be finite"),
        (math.inf, "must be finite"),
        (1e12, "must lie between"),
        ({}, "empty dict"),
        ({"third": 1}, "names 'third'"),
        (Score(1.0, style=math.nan), "the part 'style'"),
    ],
)
def test_what_is_no_score_is_said_in_words(result: object, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        score_of(result, ("first", "second"), {"second": 0.5})


def members(count: int) -> list[Member]:
    return [Member(None, TALK, {"agent": float(number)}) for number in range(count)]


@pytest.mark.parametrize("result", [[1, 0.5], (1.0, 0.5), iter([1, 0.5]), [{"agent": 1}, 0.5]])
def test_a_ranking_gives_every_member_a_reward(result: object) -> None:
    assert ranks_of(result, members(2)) == [{"agent": 1.0}, {"agent": 0.5}]


@pytest.mark.parametrize(
    ("result", "says"),
    [
        ([1.0], "returned 1 rewards for 2 episodes"),
        ([1.0, 2.0, 3.0], "returned 3 rewards for 2 episodes"),
        (None, "must return a list of rewards, one for each episode, not NoneType"),
        (1.0, "not float"),
        ("12", "not str"),
        ({"agent": 1.0}, "not dict"),
        ([1.0, None], "the ranking of episode 1: the reward must be a number, not None"),
        ([1.0, math.nan], "the ranking of episode 1: the reward must be finite"),
        ([{"other": 1.0}, 1.0], "the ranking of episode 0: the reward names 'other'"),
    ],
)
def test_what_is_no_ranking_is_said_in_words(result: object, says: str) -> None:
    with pytest.raises((TypeError, ValueError), match=says):
        ranks_of(result, members(2))


def test_a_task_travels_as_json() -> None:
    assert sendable(("word", 1), "e") == ("word", 1)
    with pytest.raises(TypeError, match=r"e is scored or ranked in another process, .*: it is of the type object"):
        sendable(object(), "e")
    deep: list[Any] = []
    for _ in range(40):
        deep = [deep]
    with pytest.raises(ValueError, match="the task of e is nested more than 32 deep"):
        sendable(deep, "e")
    with pytest.raises(ValueError, match="the task of e has more than 32768 entries"):
        sendable([[0] * 1000] * 40, "e")


def test_functions_are_checked_when_they_are_declared() -> None:
    @env(score_timeout=5)
    async def proof(ep: Episode) -> None: ...

    @proof.score
    def grade(task: Any, transcript: Transcript) -> bool:
        return transcript.text == "4"

    assert proof.scorer is grade and proof.ranker is None and proof.score_timeout == 5
    assert grade(None, TALK), "the author can go on calling it"
    with pytest.raises(TypeError, match="proof has a scorer already"):
        proof.score(grade)
    with pytest.raises(TypeError, match=r"grade of the environment proof must take def grade\(episodes\)"):
        proof.group(grade)
    with pytest.raises(ValueError, match="score_timeout of proof must be a number of seconds"):
        env(name="proof", score_timeout=0)(proof.function)
