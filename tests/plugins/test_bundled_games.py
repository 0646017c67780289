"""The bundled environments of several agents: who wins, who is paid, and in the words that the base was taught."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from marlaas.engine.home.paths import BUNDLED_PLUGINS
from marlaas.plugins import Environment
from marlaas.plugins.host.loading import load
from marlaas.plugins.messages import Ask
from marlaas.plugins.parameters import complete
from tools.base.skills import Game

from .scripted import Played, play

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


@pytest.mark.parametrize("knows", ["adder", "sorter"])
async def test_one_role_alone_earns_nothing(knows: str) -> None:
    played = await play(bundled("relay"), lambda ask: relayed(ask) if ask.agent == knows else "12")
    assert set(played.rewards.by_agent.values()) == {0.0}


@pytest.mark.parametrize("name", GAMES)
async def test_members_share_an_instance_and_splits_do_not(name: str) -> None:
    async def first(split: str, index: int, member: int = 0) -> str:
        played = await play(bundled(name), lambda ask: "", split=split, index=index, member=member)
        return played.asks[0].messages[0].content

    assert await first("train", 3, 0) == await first("train", 3, 5)
    assert len({await first(split, index) for split in ("train", "eval") for index in range(8)}) > 12
