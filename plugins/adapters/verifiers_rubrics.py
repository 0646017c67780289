"""Records what the reward functions of verifiers raise; the library counts that as 0 and writes a line into a log.

The functions of a rubric are replaced by ones that do the same and report what was raised while an episode was scored,
so that it can be charted.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextvars import ContextVar
from typing import Any

from .declaring import settled

_raised: ContextVar[list[str] | None] = ContextVar("raised", default=None)


def watch(rubric: Any) -> None:
    """Replace the functions of a rubric, and of the rubrics in it, by ones that report what they raise."""
    rubric.funcs = [_watched(function) for function in rubric.funcs]
    for inner in getattr(rubric, "rubrics", ()):
        watch(inner)


def collect() -> list[str]:
    """A list that collects what functions raise from here on in this episode, one sentence each."""
    found: list[str] = []
    _raised.set(found)
    return found


def _watched(function: Callable[..., Any]) -> Callable[..., Any]:
    """A function of the same name and signature, by which the library finds its arguments."""

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
