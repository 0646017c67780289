"""Classes like TRL's ``environment_factory``: ``reset``, ``get_reward``, tools.

Each episode calls one instance's ``reset(**row)``; documented public methods are tools.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from ..environment import Data, Environment
from ..episode import Episode
from .declaring import declared, own_random, settled

_NO_TOOLS = ("reset", "get_reward", "close")


def tool_class(
    made: Callable[[], Any],
    *,
    data: Data | None = None,
    name: str | None = None,
    system: str | None = None,
    max_turns: int = 16,
    timeout: float = 60.0,
) -> Environment:
    """A class with ``reset``, tools and ``get_reward`` as an environment.

    ``data``: as for ``@env``; each row is a dict, and reaches ``reset`` as its keywords. What the model is first told
    is the row's ``prompt``, if there is one, and then what ``reset`` returns. ``max_turns``: replies, at most.
    """

    @own_random
    async def play(ep: Episode, task: dict[str, Any] | None = None) -> Any:
        world = made()
        first = await settled(world.reset(**(task or {})))
        opening = "\n\n".join(str(text) for text in ((task or {}).get("prompt"), first) if text)
        if not opening:
            raise ValueError("the model is told nothing: reset must return a text, or the row have a prompt")
        await ep.agent(system=system, tools=tools_of(world)).act(opening, max_turns=max_turns)
        return await settled(world.get_reward())

    title = getattr(made, "__name__", type(made).__name__)
    about = inspect.cleandoc(made.__doc__ or "") or f"The class {title}."
    return declared(play, name or title, about, timeout=timeout, data=data)


def tools_of(world: Any) -> list[Callable[..., Any]]:
    """An instance's tools."""
    return [getattr(world, name) for name in tool_names(type(world))]


def tool_names(kind: type) -> list[str]:
    """With a docstring, except reserved ones."""
    found = inspect.getmembers(kind, inspect.isfunction)
    return [name for name, method in found if not name.startswith("_") and name not in _NO_TOOLS and method.__doc__]
