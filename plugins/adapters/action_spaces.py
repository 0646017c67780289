"""Reads an action of a Gymnasium space from a reply, and checks that it belongs to the space.

The spaces are known by the names of their classes and by their own ``from_jsonable``, so neither Gymnasium nor numpy is
needed here. https://gymnasium.farama.org/api/spaces/
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from typing import Any

_SHOWN = 80
_WRONG = (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError, AssertionError)


def action_of(space: Any, text: str) -> Any:
    """The action of ``space`` in a reply; raises ``ValueError`` if there is none.

    A reply is the action itself for a space of text, and a whole number for one of several actions. For every other
    space it is JSON: lists for arrays, ``Tuple``, ``Sequence`` and ``OneOf`` (number of the space, and its action), an
    object for ``Dict``, and for ``Graph`` one with ``nodes`` and, if any, ``edges`` and ``edge_links``. Raises
    ``TypeError`` for a space that is none of Gymnasium's.
    """
    kind = type(space).__name__
    if kind == "Text":
        return allowed(space, text)
    if kind == "Discrete":
        return _whole(text, space)
    if not hasattr(space, "from_jsonable"):
        raise TypeError(f"the actions of this world are a {kind}: say what a reply means with act=")
    try:
        return allowed(space, _read(space, json.loads(text, parse_constant=_refuse)))
    except _WRONG:
        raise ValueError(f"an action is JSON that fits {space!s:.{_SHOWN}}") from None


def allowed(space: Any, action: Any) -> Any:
    """``action`` unchanged; ``ValueError`` if it is not in ``space``. None is a world without a space."""
    try:
        fits = space is None or action in space
    except Exception:  # a custom space, and an unexpected action
        fits = False
    if not fits:
        raise ValueError(f"the world does not take the action {action!r:.{_SHOWN}}")
    return action


def _whole(text: str, space: Any) -> int:
    stripped = text.strip()
    digits = stripped.removeprefix("-")
    if not (len(digits) < 20 and digits.isascii() and digits.isdigit() and int(stripped) in space):
        raise ValueError(f"an action is a whole number from {space.start} to {space.start + space.n - 1}")
    return int(stripped)


def _read(space: Any, value: Any) -> Any:
    match type(space).__name__:
        case "Text":
            return value
        case "Tuple":
            return tuple(_read(inner, part) for inner, part in zip(space.spaces, value, strict=True))
        case "Dict":
            return {key: _read(space.spaces[key], part) for key, part in value.items()}
        case "OneOf":
            place, part = value
            if isinstance(place, bool) or not 0 <= place < len(space.spaces):
                raise ValueError("no such space")
            return place, _read(space.spaces[place], part)
        case "Sequence" if not space.stack:
            return tuple(_read(space.feature_space, part) for part in value)
        case "Graph":
            return _graph(space, value)
        case "Box" if space.shape == (1,) and not isinstance(value, list):
            value = [value]
    (action,) = space.from_jsonable([value])
    if not _same(action, value):
        raise ValueError("it would become another value")
    return action


def _graph(space: Any, value: Any) -> Any:
    batched = {name: part if name == "edge_links" else [part] for name, part in value.items()}
    (graph,) = space.from_jsonable([batched])
    if not all(_same(part, value.get(name)) for name, part in graph._asdict().items()):
        raise ValueError("it would become another value")
    return graph


def _same(action: Any, value: Any) -> bool:
    """True if an array holds exactly the numbers of ``value``: a conversion to integers may cut or wrap them."""
    if not hasattr(action, "tolist"):
        return True  # several arrays in a stack: the space checks them
    held = action.tolist()
    if getattr(getattr(action, "dtype", None), "kind", "") == "f":
        return all(math.isfinite(number) for number in _flat(held))
    return bool(held == value)


def _flat(value: Any) -> Iterator[Any]:
    if isinstance(value, list):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number")
