"""Worlds of the real Gymnasium: by their id, with hooks, and a dropped class with a space of texts."""

from __future__ import annotations

import re

import pytest

from .conftest import PATIENCE, PublishedVersions, Says

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
CLIFF = """
# /// script
# dependencies = ["gymnasium==1.4.0"]
# ///
from marlaas.plugins.adapters import gymnasium

cliff = gymnasium("CliffWalking-v1", name="cliff", act=int)
"""
SPACES = """
# /// script
# dependencies = ["gymnasium==1.4.0"]
# ///
import gymnasium as library
from gymnasium import spaces
from marlaas.plugins.adapters import gymnasium

PULL = spaces.Box(-1, 1, (2,))
KINDS = {
    "discrete": spaces.Discrete(3, start=-1),
    "multi": spaces.MultiDiscrete([2, 3]),
    "binary": spaces.MultiBinary([2, 2]),
    "box": PULL,
    "bytes": spaces.Box(0, 255, (2,), dtype="uint8"),
    "text": spaces.Text(5, charset="abc"),
    "tuple": spaces.Tuple([spaces.Discrete(2), PULL]),
    "dict": spaces.Dict(way=spaces.Discrete(2), pull=PULL),
    "sequence": spaces.Sequence(spaces.Discrete(3)),
    "stack": spaces.Sequence(spaces.Discrete(3), stack=True),
    "oneof": spaces.OneOf([spaces.Discrete(2), PULL]),
    "graph": spaces.Graph(PULL, spaces.Discrete(3)),
}


class World(library.Env):
    observation_space = spaces.Discrete(1)

    def __init__(self, kind):
        self.action_space = KINDS[kind]

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return 0, {}

    def step(self, action):
        assert action in self.action_space
        return 0, 1.0, True, False, {}


for kind in KINDS:
    globals()[kind] = gymnasium(World, name=kind, kind=kind)
"""
ACTIONS = {
    "discrete": ("-1", "2"),
    "multi": ("[1, 2]", "[1, 3]"),
    "binary": ("[[1, 0], [0, 1]]", "[[1, 0], [0, 2]]"),
    "box": ("[0.5, -1]", "[0.5, 2]"),
    "bytes": ("[0, 255]", "[0, 256]"),
    "text": ("abc", "xyz"),
    "tuple": ("[1, [0, 0]]", "[2, [0, 0]]"),
    "dict": ('{"way": 1, "pull": [0, 0]}', '{"way": 1}'),
    "sequence": ("[1, 2]", "[3]"),
    "stack": ("[1, 2]", "[3]"),
    "oneof": ("[1, [0, 0]]", "[2, 0]"),
    "graph": ('{"nodes": [[0, 0], [1, 1]], "edges": [2], "edge_links": [[0, 1]]}', '{"nodes": [[0, 2]]}'),
}
"""For each kind of space a reply that is an action, and one that is none."""
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
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": -1.0}) and "from 0 to 3" in outcome.invalid

    outcome = await published.episode("hooks/lake", lambda ask: "swim")
    assert outcome.invalid == "one of left, down, right, up"
    slippery = [await published.episode("hooks/lake", lambda ask: "down", member=member) for member in (0, 1)]
    assert slippery[0].metrics == slippery[1].metrics, "the ice is the same for a whole group"

    def repeats(text: str) -> str:
        return re.sub("^repeat ", "", text)

    outcome = await published.episode("dropped/Echo", lambda ask: repeats(ask.messages[-1].content))
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": 1.0})
    outcome = await published.episode("dropped/Echo", lambda ask: "xyz")
    assert "does not take the action 'xyz'" in outcome.invalid


def saying(reply: str) -> Says:
    return lambda ask: reply


async def test_only_actions_of_its_space_reach_a_world(published: PublishedVersions) -> None:
    published.save("cliff.py", CLIFF)
    published.save("spaces.py", SPACES)
    assert set((await published.start()).values()) == {None}
    replies = iter(("0", "45"))
    outcome = await published.episode("cliff/cliff", lambda ask: next(replies))
    assert (outcome.status, outcome.rewards) == ("ok", {"agent": -2.0}), outcome.failure
    assert outcome.invalid == "the world does not take the action 45"
    for kind, (taken, refused) in ACTIONS.items():
        for reply, reward in ((taken, 1.0), (refused, -1.0), ("²", -1.0)):
            outcome = await published.episode(f"spaces/{kind}", saying(reply))
            assert (outcome.status, outcome.rewards) == ("ok", {"agent": reward}), (kind, reply, outcome)
