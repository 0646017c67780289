"""OpenEnv environments, run in the plugin's own process: no server, no container, no socket.

The model gets each observation as text, and each reply becomes an action; if the class offers MCP tools, the model
calls them instead. Reward and end are in the observation, as in OpenEnv.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

from ..environment import Environment
from ..episode import Episode
from ..tools import Tool
from .declaring import declared, settled
from .described_tools import described_tool
from .library import library
from .openenv_models import action_class, action_of, shown
from .openenv_seed import seed_is_read, takes
from .own_random import own_random
from .unreadable import NO_ACTION, levelling, unreadable_reply


def openenv(
    environment: str | Callable[..., Any],
    *,
    name: str | None = None,
    act: Callable[[str], Any] | None = None,
    describe: Callable[[Any], str] = shown,
    system: str | None = None,
    max_turns: int = 20,
    timeout: float = 60.0,
    unreadable: float | None = None,
    **options: Any,
) -> Environment:
    """An OpenEnv environment as an environment.

    ``environment``: the class, or ``"module:Class"``; ``options`` go to it. ``act``: the action that a reply means;
    without it the reply is the text of the action's only required field, or JSON where it has several. ``describe``:
    the text for an observation. The reward is the sum over the steps. Each episode has an instance of its own.

    A reply that cannot be read, or a first reply that calls none of the MCP tools, ends the episode as invalid. Its
    reward is ``unreadable``, or else one less than it earned so far, and than 0; in training it is at most the least
    reward of its group, so that it never pays to be unreadable.

    If ``reset`` ignores the seed that it is given, the episode logs ``seed_ignored``: what the environment draws
    from generators of its own differs between the members of a group.

    Raises ``TypeError`` if ``act`` is needed.
    """
    made = _found(environment) if isinstance(environment, str) else environment
    title = name or str(getattr(made, "__name__", type(made).__name__))
    seed_ignored = isinstance(made, type) and not seed_is_read(made)
    has_tools = isinstance(made, type) and any(base.__name__ == "MCPEnvironment" for base in made.__mro__)
    read = act if act is not None or has_tools else functools.partial(action_of, action_class(made))
    about = f"The OpenEnv environment {title}."
    if seed_ignored:
        about += " Its reset ignores the seed: members of a group may not meet the same instance."

    @own_random
    async def play(ep: Episode) -> float:
        world = made(**options)
        try:
            session = _Session(world, ep, unreadable)
            opening = describe(await session.reset())
            if read is not None:
                await session.play(opening, read, describe, system, max_turns)
            else:
                tools = await session.tools()
                await ep.agent(system=system, tools=tools).act(opening, max_turns=max_turns)
                session.check_begun()
            if seed_ignored:
                ep.log(seed_ignored=1.0)
            return session.earned
        finally:
            world.close()

    return levelling(declared(play, title, about, timeout=timeout))


class _Session:
    """One instance, from its reset to its end."""

    def __init__(self, world: Any, ep: Episode, unreadable: float | None) -> None:
        self.earned = 0.0
        self._unreadable = unreadable
        self._world = world
        self._ep = ep
        self._done = False
        self._steps = 0

    async def reset(self) -> Any:
        method = self._method("reset")
        seed = {"seed": self._ep.rng.getrandbits(31)} if takes(method, "seed") else {}
        return self._take(await settled(method(**seed)))

    async def play(
        self,
        opening: str,
        read: Callable[[str], Any],
        describe: Callable[[Any], str],
        system: str | None,
        max_turns: int,
    ) -> None:
        agent, said = self._ep.agent(system=system), opening
        for _ in range(max_turns):
            reply = await agent.ask(said)
            try:
                action = read(reply.text)
            except NO_ACTION as error:
                raise unreadable_reply(self._ep, error, self.earned, self._unreadable) from None
            said = describe(await self._step(action))
            if self._done:
                break

    def check_begun(self) -> None:
        """Raise ``Invalid`` if the model has called no tool: the world then paid nothing."""
        if not self._steps:
            raise unreadable_reply(self._ep, "the reply calls none of the tools", self.earned, self._unreadable)

    async def tools(self) -> list[Tool]:
        types = library("openenv.core.env_server.mcp_types")
        listed = await settled(self._method("step")(types.ListToolsAction()))

        def tool(found: Any) -> Tool:
            async def call(arguments: dict[str, Any]) -> Any:
                if self._done:
                    return "the episode is over"
                observation = await self._step(types.CallToolAction(tool_name=found.name, arguments=arguments))
                if observation.error is not None:
                    return f"error: {observation.error.message}"
                return _result(observation.result)

            return described_tool(found.name, found.description, found.input_schema, call)

        return [tool(found) for found in listed.tools]

    async def _step(self, action: Any) -> Any:
        self._steps += 1
        self._ep.log(steps=self._steps)
        return self._take(await settled(self._method("step")(action)))

    def _method(self, name: str) -> Callable[..., Any]:
        form = f"{name}_async"
        written = any(form in vars(base) for base in type(self._world).__mro__ if base.__name__ != "Environment")
        found: Callable[..., Any] = getattr(self._world, form if written else name)
        return found

    def _take(self, observation: Any) -> Any:
        self.earned += float(observation.reward or 0.0)
        self._done = bool(observation.done)
        return observation


def _result(result: Any) -> Any:
    data = getattr(result, "data", None)
    return result if data is None else data


def _found(path: str) -> Any:
    module, _, name = path.partition(":")
    if not name:
        raise ValueError(f"an OpenEnv environment is named as module:Class, not {path!r}")
    library("openenv")
    return getattr(importlib.import_module(module), name)
