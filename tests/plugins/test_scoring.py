"""What score functions and rankings see, what they may return, and how they are declared."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine.home.paths import BUNDLED_PLUGINS
from marlaas.plugins import Environment, Episode, Member, Message, Reply, Score, Transcript, env
from marlaas.plugins.messages import Ask
from marlaas.plugins.parameters import complete
from marlaas.plugins.rewards import ranks_of, score_of, sendable
from tests.loading import load
from tools.base.skills import Game

from .scripted import Played, play

TALK = Transcript({"agent": (Message("user", "2+2="), Message("assistant", "5"), Message("assistant", "4"))})


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


EXAMPLES = Path(__file__).parents[2] / "examples"


def example(name: str) -> Environment:
    return load(EXAMPLES / f"{name}.py")[name]


def said(text: str) -> Transcript:
    return Transcript({"agent": (Message("user", "?"), Message("assistant", text))})


async def asked(environment: Environment, answer: str, **given: object) -> tuple[str, object]:
    """The prompt, and what the environment returns for an answer."""
    prompts = []

    async def model(ask: Ask) -> Reply:
        prompts.append(ask.messages[0].content)
        return Reply(answer, "stop", 0)

    result = await environment(Episode(model), **given)
    return prompts[0], result


@pytest.mark.parametrize(
    ("text", "value", "exact", "named"),
    [
        ("Rome", 1.0, True, True),
        ("It is ROME.", 0.5, False, True),
        ("Paris", 0.0, False, False),
        ("", 0.0, False, False),
    ],
)
async def test_capitals(text: str, value: float, exact: bool, named: bool) -> None:
    capitals = example("capitals")
    row = next(row for row in capitals.data("train") if row["capital"] == "Rome")  # type: ignore[operator, misc]
    assert await asked(capitals, text, task=row) == ("The capital of Italy, in one word:", None)
    assert capitals.scorer is not None
    score = capitals.scorer(row, said(text))
    assert (score.value, score.parts) == (value, {"exact": exact, "named": named})


async def test_shortest() -> None:
    shortest = example("shortest")
    prompt, right = await asked(shortest, "0")
    assert right is (sum(map(int, prompt.rstrip("=").split("+"))) == 0)
    assert shortest.ranker is not None
    group = [Member(None, said(text), {"agent": own}) for text, own in (("7", 1.0), ("3", 0.0), ("So 7", 1.0))]
    assert shortest.ranker(group) == [1.0, 0.0, 0.25]
    assert shortest.ranker(group[1:2]) == [0.0]


GAMES = ("race", "relay")


def bundled(name: str) -> Environment:
    return load(BUNDLED_PLUGINS / f"{name}.py")[name]


def hunter(right: bool) -> Callable[[Ask], str]:
    """The taught player of `guess`: it halves what is left, or counts upwards."""
    heard: list[str] = []

    def say(ask: Ask) -> str:
        heard.append(ask.messages[-1].content)
        low, high = map(int, re.findall(r"\d+", heard[0]))
        return Game(low, high - low + 1, 6, low).reply(heard, right)

    return say


async def raced(index: int, first: Callable[[Ask], str], second: Callable[[Ask], str]) -> Played:
    players = {"first": first, "second": second}
    return await play(bundled("race"), lambda ask: players[ask.agent](ask), index=index)


def adding(ask: Ask) -> str:
    return str(sum(map(int, re.findall(r"\d+", ask.messages[0].content))))


def sorting(ask: Ask) -> str:
    return "".join(sorted(ask.messages[0].content.split()[1]))


def relayed(ask: Ask) -> str:
    return adding(ask) if ask.agent == "adder" else sorting(ask)


@pytest.mark.parametrize("name", GAMES)
def test_what_they_declare(name: str) -> None:
    environment = bundled(name)
    assert environment.agents == {"race": ("first", "second"), "relay": ("adder", "sorter")}[name]
    with pytest.raises(ValueError, match="must be"):
        complete(environment.parameters, {"race": {"turns": 0}, "relay": {"digits": 6}}[name], name)


async def test_halving_beats_counting_as_either_agent() -> None:
    won = [0.0, 0.0]
    for index in range(40):
        for agent, players in enumerate(((hunter(True), hunter(False)), (hunter(False), hunter(True)))):
            rewards = (await raced(index, *players)).rewards.by_agent
            assert sum(rewards.values()) == 1.0
            won[agent] += rewards[("first", "second")[agent]]
    assert min(won) > 24


async def test_words_lose_the_race_and_six_wrong_numbers_are_a_draw() -> None:
    assert (await raced(0, lambda _: "x", hunter(True))).rewards.by_agent == {"first": 0.0, "second": 1.0}
    assert (await raced(0, lambda _: "9999", lambda _: "²")).rewards.by_agent == {"first": 1.0, "second": 0.0}
    drawn = await raced(0, lambda _: "9999", lambda _: "9999")
    assert drawn.rewards.by_agent == {"first": 0.5, "second": 0.5} and len(drawn.asks) == 12


async def test_the_relay_takes_two() -> None:
    for index in range(20):
        right = await play(bundled("relay"), relayed, index=index)
        assert right.rewards.by_agent == {"adder": 1.0, "sorter": 1.0}
        assert right.episode.logged == {"added": 1.0, "sorted": 1.0}
        assert re.fullmatch(r"\d{3}\+\d{3}=", right.asks[0].messages[0].content)
        assert re.fullmatch(r"sort \d{3,4}", right.asks[1].messages[0].content)
