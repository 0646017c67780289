"""Worlds of the real Gymnasium: by their id, with hooks, and a dropped class with a space of texts."""

from __future__ import annotations

import re

import pytest

from .conftest import PATIENCE, PublishedVersions

pytestmark = [pytest.mark.libraries, pytest.mark.processes, pytest.mark.timeout(PATIENCE)]

LAKE = """
adapter = "gymnasium"
environment = "FrozenLake-v1"
system = "Squares are 0 to 15. Say 0 for left, 1 for down, 2 for right, 3 for up."

[args]
is_slippery = false
"""
HOOKS = """
# /// script
# dependencies = ["gymnasium==1.4.0"]
# ///
from marlaas.plugins.adapters import gymnasium

MOVES = {"left": 0, "down": 1, "right": 2, "up": 3}


def act(text):
    if text not in MOVES:
        raise ValueError(f"one of {', '.join(MOVES)}")
    return MOVES[text]


lake = gymnasium("FrozenLake-v1", name="lake", describe=lambda square: f"You are on {square}.", act=act, map_name="4x4")
"""
DROPPED = """
# /// script
# dependencies = ["gymnasium==1.4.0"]
# ///
import gymnasium


class Echo(gymnasium.Env):
    observation_space = gymnasium.spaces.Text(20, charset="abc ")
    action_space = gymnasium.spaces.Text(8, charset="abc")

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.word = "".join(self.np_random.choice(list("abc"), 5))
        return f"repeat {self.word}", {}

    def step(self, action):
        return "", float(action == self.word), True, False, {}
"""
WAY = ["1", "1", "2", "1", "2", "2"]


async def test_worlds(published: PublishedVersions) -> None:
    published.save("frozen.toml", LAKE)
    published.save("hooks.py", HOOKS)
    published.save("dropped.py", DROPPED)
    assert set((await published.start()).values()) == {None}

    way = iter(WAY)
    outcome = await published.episode("frozen/FrozenLake-v1", lambda ask: next(way))
    assert (outcome.status, outcome.rewards, outcome.metrics["turns"]) == ("ok", {"agent": 1.0}, 6)
    outcome = await published.episode("frozen/FrozenLake-v1", lambda ask: "down")
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 0.0}) and "from 0 to 3" in outcome.invalid

    outcome = await published.episode("hooks/lake", lambda ask: "swim")
    assert outcome.invalid == "one of left, down, right, up"
    slippery = [await published.episode("hooks/lake", lambda ask: "down", member=member) for member in (0, 1)]
    assert slippery[0].metrics == slippery[1].metrics, "the ice is the same for a whole group"

    def repeats(text: str) -> str:
        return re.sub("^repeat ", "", text)

    outcome = await published.episode("dropped/Echo", lambda ask: repeats(ask.messages[-1].content))
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.0})
    outcome = await published.episode("dropped/Echo", lambda ask: "xyz")
    assert "does not take the text" in outcome.invalid
