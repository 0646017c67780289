"""Sees the reward functions of verifiers raise. The library counts that as 0 and writes a line into a log.

Flows in: a rubric, whose functions are exchanged for ones that do the same. Flows out: what was raised while an episode
was scored, so that it can be charted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from .declaring import settled

_raised: ContextVar[list[str] | None] = ContextVar("raised", default=None)


def watch(rubric: Any) -> None:
    """Exchange the functions of a rubric, and of the rubrics in it."""
    rubric.funcs = [_watched(function) for function in rubric.funcs]
    for inner in getattr(rubric, "rubrics", ()):
        watch(inner)


def collect() -> list[str]:
    """A list that from now on holds what functions raise in this episode, one sentence each."""
    found: list[str] = []
    _raised.set(found)
    return found


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same by name and by signature, which is how the library finds its arguments."""

    @functools.wraps(function)
    async def watched(*arguments: Any, **named: Any) -> Any:
        try:
            return await settled(function(*arguments, **named))
        except Exception as error:
            found = _raised.get()
            if found is not None:
                found.append(f"{getattr(function, '__name__', 'a reward')} raised {type(error).__name__}: {error}")
            raise

    return watched
