"""Turns the play function of an adapter into a declared environment.

Simple settings of the foreign library become parameters of that ``Environment``.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..environment import Data, Environment, environment_of

_RESERVED = ("ep", "task")


def declared(
    play: Callable[..., Any],
    name: str,
    about: str,
    *,
    timeout: float,
    score_timeout: float = 30.0,
    data: Data | None = None,
    options: Mapping[str, Any] | None = None,
    agents: Sequence[str] = (),
) -> Environment:
    """Declare ``play`` under a usable form of ``name``.

    ``options``: settings by name with their defaults. Numbers, texts and booleans become parameters of the environment,
    and reach ``play`` as keywords. ``agents``: their names, if several.
    """
    play.__doc__ = about
    keywords = [
        inspect.Parameter(option, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=type(default))
        for option, default in simple(options or {}).items()
    ]
    episode = inspect.Parameter("ep", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    task = [inspect.Parameter("task", inspect.Parameter.KEYWORD_ONLY)] if data is not None else []
    play.__signature__ = inspect.Signature([episode, *task, *keywords])  # type: ignore[attr-defined]
    return environment_of(play, usable(name), data, timeout, score_timeout, agents)


def simple(options: Mapping[str, Any]) -> dict[str, Any]:
    """The settings that a task file can hold as one value."""
    return {
        name: value
        for name, value in options.items()
        if type(value) in (int, float, str, bool) and name.isidentifier() and name not in _RESERVED
    }


def usable(name: str) -> str:
    """A valid environment name made of any name: at most 64 letters, digits, - and _."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:64].strip("_") or "environment"


async def settled(result: Any) -> Any:
    """The result of a plain or ``async`` method."""
    return await result if inspect.isawaitable(result) else result
