"""Games in TextArena's manner, written by hand: the library is a stand-in of one function."""

from __future__ import annotations

import random
import sys
from types import ModuleType
from typing import Any

import pytest

from marlaas.plugins.adapters import textarena
from marlaas.plugins.adapters.textarena_games import heard

from .playing import played


class Count:
    """Players say the next number in turn; a wrong one is told off once, then loses. As ``-raw`` games, it hands out
    new messages only, the player's own among them, and seeds the process."""

    def __init__(self, last: int = 4) -> None:
        self.last = last

    def reset(self, num_players: int, seed: int | None = None) -> None:
        random.seed(seed)
        self.number, self.player, self.warned = random.randrange(100), 0, False
        self.end = self.number + self.last
        self.rewards: dict[int, float] | None = None
        self.unseen = {pid: [(-1, f"You are player {pid}. After {self.number}?", "prompt")] for pid in (0, 1)}
        self.invalid = {0: False, 1: False}

    def get_observation(self) -> tuple[int, list[tuple[int, str, str]]]:
        new, self.unseen[self.player] = self.unseen[self.player], []
        return self.player, new

    def step(self, action: str) -> tuple[bool, dict[str, Any]]:
        for unseen in self.unseen.values():
            unseen.append((self.player, action, "action"))
        if action != str(self.number + 1):
            if self.warned:
                self.invalid[self.player] = True
                self.rewards = {self.player: -1, 1 - self.player: 1}
                return True, {}
            self.warned = True
            self.unseen[self.player].append((-1, "Wrong.", "admin"))
            return False, {}
        self.number, self.player, self.warned = self.number + 1, 1 - self.player, False
        if self.number == self.end:
            self.rewards = {0: 0, 1: 0}
        return self.number == self.end, {}

    def close(self) -> tuple[dict[int, float] | None, dict[int, dict[str, Any]]]:
        return self.rewards, {pid: {"invalid_move": invalid} for pid, invalid in self.invalid.items()}


@pytest.fixture(autouse=True)
def installed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    made: list[str] = []

    def make(game: str, **options: Any) -> Count:
        made.append(game)
        return Count(**options)

    library = ModuleType("textarena")
    library.make = make  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "textarena", library)
    return made


def next_number(ask: Any) -> str:
    """Says the next number, from the last one in sight."""
    said = [int(word.rstrip("?")) for word in ask.messages[-1].content.split() if word.rstrip("?").isdigit()]
    return str(said[-1] + 1)


def test_players_are_declared_so_that_tasks_say_who_plays_them() -> None:
    assert textarena("Count-v0").agents == ("player0", "player1")
    assert textarena("Count-v0", players=3).agents == ("player0", "player1", "player2")
    assert textarena("Alone-v0", players=1).agents == ()


async def test_each_player_hears_what_is_new_to_it(installed: list[str]) -> None:
    result, ep, model = await played(textarena("Count-v0"), next_number)
    assert result == {"player0": 0.0, "player1": 0.0} and installed == ["Count-v0-raw"]
    assert [ask.agent for ask in model.asks] == ["player0", "player1", "player0", "player1"]
    opening, answer, third, _ = model.heard
    assert opening.startswith("You are player 0.") and "[Player" not in opening
    assert answer.splitlines()[0].startswith("You are player 1.") and "[Player 0]" in answer
    assert third.startswith("[Player 1]") and third.count("\n") == 0
    assert ep.logged == {"turns": 4.0, "invalid_moves": 0.0}


async def test_a_move_against_the_rules_is_told_and_then_punished() -> None:
    result, ep, model = await played(textarena("Count-v0"), lambda ask: "no")
    assert result == {"player0": -1.0, "player1": 1.0}
    assert model.heard[1] == "Wrong." and ep.logged["invalid_moves"] == 1.0


async def test_an_endless_game_pays_nobody() -> None:
    result, ep, _ = await played(textarena("Count-v0", max_turns=3, last=99), next_number)
    assert result == {"player0": 0.0, "player1": 0.0} and ep.logged["unfinished"] == 1.0


async def test_members_of_a_group_play_the_same_game() -> None:
    count = textarena("Count-v0")
    heard_by = [(await played(count, next_number, member=member))[2].heard for member in (0, 1)]
    assert heard_by[0] == heard_by[1]
    assert (await played(count, next_number, index=1))[2].heard != heard_by[0]


def test_a_text_is_passed_on_as_it_is() -> None:
    assert heard("all of it", 0) == "all of it"
