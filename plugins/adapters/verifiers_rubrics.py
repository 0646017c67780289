"""Records exceptions of verifiers' reward functions; the library counts them as 0 and writes a log line.

The functions of a rubric are wrapped to report their exceptions during an episode's scoring, so that they can be
charted.
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
    """An exception of a rubric's function."""

    text: str
    pays: bool
    """True if the function's result is part of the reward; a metric has the weight 0."""


_raised: ContextVar[list[Raised] | None] = ContextVar("raised", default=None)


def watch(rubric: Any) -> None:
    """Wrap the functions of a rubric, and of the rubrics in it, to report their exceptions."""
    weights = getattr(rubric, "weights", None) or repeat(1.0)
    rubric.funcs = [_watched(function, weight != 0) for function, weight in zip(rubric.funcs, weights, strict=False)]
    for inner in getattr(rubric, "rubrics", ()):
        watch(inner)


def collect() -> list[Raised]:
    """A list that collects exceptions of functions from now on in this episode."""
    found: list[Raised] = []
    _raised.set(found)
    return found


def _watched(function: Callable[..., Any], pays: bool) -> Callable[..., Any]:
    """A function of the same name and signature: the library finds its arguments by them."""

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
