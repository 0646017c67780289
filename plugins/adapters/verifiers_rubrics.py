"""Records what the reward functions of verifiers raise; the library counts that as 0 and writes a line into a log.

The functions of a rubric are replaced by ones that do the same and report what was raised while an episode was scored,
so that it can be charted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass
from itertools import repeat
from typing import Any

from .declaring import settled


@dataclass(frozen=True)
class Raised:
    """What a function of a rubric raised."""

    text: str
    """One sentence."""
    pays: bool
    """Whether what the function returns is part of the reward; a metric has the weight 0."""


_raised: ContextVar[list[Raised] | None] = ContextVar("raised", default=None)


def watch(rubric: Any) -> None:
    """Replace the functions of a rubric, and of the rubrics in it, by ones that report what they raise."""
    weights = getattr(rubric, "weights", None) or repeat(1.0)
    rubric.funcs = [_watched(function, weight != 0) for function, weight in zip(rubric.funcs, weights, strict=False)]
    for inner in getattr(rubric, "rubrics", ()):
        watch(inner)


def collect() -> list[Raised]:
    """A list that collects what functions raise from here on in this episode."""
    found: list[Raised] = []
    _raised.set(found)
    return found


def _watched(function: Callable[..., Any], pays: bool) -> Callable[..., Any]:
    """A function of the same name and signature, by which the library finds its arguments."""

    @functools.wraps(function)
    async def watched(*arguments: Any, **named: Any) -> Any:
        try:
            return await settled(function(*arguments, **named))
        except Exception as error:
            found = _raised.get()
            if found is not None:
                name = getattr(function, "__name__", "a reward")
                found.append(Raised(f"{name} raised {type(error).__name__}: {error}", pays))
            raise

    return watched
