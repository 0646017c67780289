"""Actions from replies, for spaces written by hand as Gymnasium's are; tests/libraries has the real ones."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest

from marlaas.plugins.adapters.gymnasium_worlds import action_of, allowed


class Array:
    """What ``MultiDiscrete``, ``MultiBinary`` and ``Box`` have in common: arrays of a shape between two bounds."""

    def __init__(self, shape: tuple[int, ...], low: float, high: float, dtype: str) -> None:
        self.shape, self.low, self.high, self.dtype = shape, low, high, dtype

    def from_jsonable(self, samples: list[Any]) -> list[Any]:
        return [np.asarray(sample, dtype=self.dtype) for sample in samples]

    def __contains__(self, action: Any) -> bool:
        within = np.all(action >= self.low) and np.all(action <= self.high)
        return bool(action.shape == self.shape and within and np.can_cast(action.dtype, self.dtype))


class Box(Array):
    """Numbers."""


class MultiDiscrete(Array):
    """Whole numbers."""


class Discrete:
    """As ``gymnasium.spaces.Discrete``."""

    start, n = 0, 3

    def __contains__(self, action: object) -> bool:
        return isinstance(action, int | np.integer) and 0 <= int(action) < 3

    def from_jsonable(self, samples: list[int]) -> list[Any]:
        return [np.int64(sample) for sample in samples]


class Nested:
    """As the spaces that are made of others: a type check, then each part in its own space."""

    def from_jsonable(self, samples: list[Any]) -> list[Any]:
        raise AssertionError("its parts are read one by one")


class Tuple(Nested):
    """A fixed number of parts."""

    spaces: ClassVar[Any] = (Discrete(), Box((2,), -1, 1, "float32"))

    def __contains__(self, action: Any) -> bool:
        return type(action) is tuple and all(part in space for part, space in zip(action, self.spaces, strict=True))


class Dict(Nested):
    """Parts by name."""

    spaces: ClassVar[Any] = {"way": Discrete(), "pull": MultiDiscrete((2,), 0, 4, "int64")}

    def __contains__(self, action: Any) -> bool:
        return action.keys() == self.spaces.keys() and all(action[name] in space for name, space in self.spaces.items())


class Sequence(Nested):
    """Any number of actions of one space."""

    stack, feature_space = False, Discrete()

    def __contains__(self, action: Any) -> bool:
        return type(action) is tuple and all(part in self.feature_space for part in action)


class OneOf(Nested):
    """An action of one of several spaces."""

    spaces = Tuple.spaces

    def __contains__(self, action: Any) -> bool:
        return action[1] in self.spaces[action[0]]


class Graph:
    """Nodes, and edges between them."""

    def from_jsonable(self, samples: list[Any]) -> list[Any]:
        parts = ("nodes", "edges", "edge_links")
        found = {name: np.asarray(samples[0][name][0] if name != "edge_links" else samples[0][name]) for name in parts}
        return [SimpleNamespace(_asdict=lambda: found, nodes=found["nodes"])]

    def __contains__(self, action: Any) -> bool:
        return bool(np.all(action.nodes < 3))


SPACES: dict[str, Any] = {
    "multi": MultiDiscrete((2,), 0, 2, "int64"),
    "bytes": Box((2,), 0, 255, "uint8"),
    "box": Box((2,), -1, 1, "float32"),
    "one": Box((1,), -np.inf, np.inf, "float32"),
    "tuple": Tuple(),
    "dict": Dict(),
    "sequence": Sequence(),
    "oneof": OneOf(),
    "graph": Graph(),
}
TAKEN: dict[str, dict[str, Any]] = {
    "multi": {"[1, 2]": [1, 2]},
    "bytes": {"[0,255]": [0, 255]},
    "box": {"[0.5, -1]": [0.5, -1.0]},
    "one": {"0.5": [0.5], "[2]": [2.0]},
    "tuple": {"[2, [0, 1]]": (2, [0.0, 1.0])},
    "dict": {'{"way": 0, "pull": [4, 0]}': {"way": 0, "pull": [4, 0]}},
    "sequence": {"[2, 0]": (2, 0), "[]": ()},
    "oneof": {"[1, [0, 0]]": (1, [0.0, 0.0])},
    "graph": {'{"nodes": [1, 2], "edges": [0], "edge_links": [[0, 1]]}': {"nodes": [1, 2]}},
}
REFUSED = {
    "multi": ("[1, 3]", "[1.5, 0]", "[1]", "1", "{}", "[[1, 2]]"),
    "bytes": ("[0, 256]", "[0, -1]", "[0.5, 1]"),
    "box": ("[0.5, 2]", "[NaN, 0]", "[1e999, 0]", "0.5"),
    "one": ("1e999", "Infinity", "[1, 2]", '"1"x'),
    "tuple": ("[2]", "[3, [0, 1]]", "[2, [0, 1], 0]", "null"),
    "dict": ('{"way": 0}', '{"way": 3, "pull": [0, 0]}', '{"way": 0, "pull": [0, 0], "x": 1}', "[]"),
    "sequence": ("[3]", "5"),
    "oneof": ("[0, [0, 0]]", "[2, 0]", "[true, [0, 0]]", "[-1, [0, 0]]", "[0.5, 0]"),
    "graph": ('{"nodes": [3], "edges": [0], "edge_links": [[0, 0]]}', "{}", "[]"),
}
NOBODY = ("", "left", "[" * 5000, "9" * 5000, "\x00", "²")


def plain(action: Any) -> Any:
    """An action without arrays."""
    if isinstance(action, tuple):
        return tuple(map(plain, action))
    if isinstance(action, dict):
        return {name: plain(part) for name, part in action.items()}
    if hasattr(action, "nodes"):
        return {"nodes": action.nodes.tolist()}
    return action.tolist() if hasattr(action, "tolist") else action


@pytest.mark.parametrize("kind", SPACES)
def test_replies_that_mean_an_action(kind: str) -> None:
    for reply, action in TAKEN[kind].items():
        assert plain(action_of(SPACES[kind], reply)) == action


@pytest.mark.parametrize("kind", SPACES)
def test_replies_that_mean_none(kind: str) -> None:
    for reply in (*REFUSED[kind], *NOBODY):
        with pytest.raises(ValueError, match="an action is JSON that fits"):
            action_of(SPACES[kind], reply)


def test_an_action_of_the_authors_own_is_looked_at() -> None:
    class Raising:
        def __contains__(self, action: Any) -> bool:
            raise KeyError(action)

    assert allowed(Discrete(), 2) == 2 and allowed(None, "anything") == "anything"
    for space, action in ((Discrete(), 45), (Discrete(), "left"), (Raising(), 1)):
        with pytest.raises(ValueError, match=f"the world does not take the action {action!r}"):
            allowed(space, action)
