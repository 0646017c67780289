"""Games of the real TextArena: two players, invalid moves, and games at the same time that do not touch each other."""

from __future__ import annotations

import re

import pytest

from marlaas.plugins.messages import Ask

from .conftest import PATIENCE, PublishedVersions, Says

pytestmark = [pytest.mark.libraries, pytest.mark.processes, pytest.mark.timeout(PATIENCE)]

GAMES = """
[[environments]]
adapter = "textarena"
game = "TicTacToe-v0"

[[environments]]
adapter = "textarena"
game = "GuessTheNumber-v0"
players = 1

[[environments]]
adapter = "textarena"
game = "PigDice-v0"
"""


def first_free(ask: Ask) -> str:
    """Takes the first square that the last board offers."""
    offered = re.findall(r"'\[(\d)\]'", ask.messages[-1].content.rpartition("Available Moves:")[2])
    return f"[{offered[0]}]"


def halving() -> Says:
    """Finds a number from 1 to 20 in at most five guesses."""
    low, high, guess = 1, 20, 0

    def says(ask: Ask) -> str:
        nonlocal low, high, guess
        heard = ask.messages[-1].content
        if "number is lower" in heard:
            high = guess - 1
        elif "number is higher" in heard:
            low = guess + 1
        guess = (low + high) // 2
        return f"[{guess}]"

    return says


def rolling() -> Says:
    """Rolls twice, then holds."""
    turns = 0

    def says(ask: Ask) -> str:
        nonlocal turns
        turns += 1
        return "[hold]" if turns % 3 == 0 else "[roll]"

    return says


async def test_games(published: PublishedVersions) -> None:
    published.save("games.toml", GAMES)
    assert await published.start() == {"games": None}
    asks: list[Ask] = []

    def remembered(ask: Ask) -> str:
        asks.append(ask)
        return first_free(ask)

    outcome = await published.episode("games/TicTacToe-v0", remembered)
    assert (outcome.status, outcome.rewards) == ("ok", {"player0": 1.0, "player1": -1.0})
    assert (outcome.metrics["turns"], outcome.metrics["invalid_moves"]) == (7, 0)
    assert [ask.agent for ask in asks] == [f"player{turn % 2}" for turn in range(7)]
    heard = [ask.messages[-1].content for ask in asks]
    assert sum("You are Player 0" in text for text in heard) == 1, "the rules are told once"
    assert "[Player 0] [0]" in heard[1] and "[Player 0]" not in heard[2], "nobody is told what they said themselves"

    outcome = await published.episode("games/TicTacToe-v0", lambda ask: "I resign")
    assert (outcome.status, outcome.rewards) == ("ok", {"player0": -1.0, "player1": 1.0})
    assert outcome.metrics["invalid_moves"] == 1

    for game, player in (("GuessTheNumber-v0", halving), ("PigDice-v0", rolling)):
        one_by_one = [await published.episode(f"games/{game}", player(), index=index) for index in range(12)]
        together = await published.episodes(f"games/{game}", player, 12)
        assert [(one.status, one.rewards, one.metrics) for one in together] == [
            (one.status, one.rewards, one.metrics) for one in one_by_one
        ]
        assert {one.status for one in together} == {"ok"} and len({str(one.metrics) for one in together}) > 1
