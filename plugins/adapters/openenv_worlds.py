"""OpenEnv environments in the plugin's own process.

Observations have reward and end. The model calls MCP tools, if any.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import json
from collections.abc import Callable
from typing import Any, get_args, get_type_hints

from ..environment import Environment
from ..episode import Episode
from ..tools import Tool
from .declaring import NO_ACTION, declared, described_tool, levelling, library, own_random, settled, unreadable_reply


def takes(function: Callable[..., Any], name: str) -> bool:
    """True if a function takes that keyword."""
    parameters = inspect.signature(function).parameters
    return name in parameters or any(each.kind is each.VAR_KEYWORD for each in parameters.values())


# Only fields' names and types: OpenEnv is not needed.

_NO_CONTENT = ("done", "reward", "metadata")


def shown(observation: Any) -> str:
    """A single text field unchanged, several one a line, else the metadata's message."""
    dumped = observation.model_dump()
    fields = {name: value for name, value in dumped.items() if name not in _NO_CONTENT and value not in (None, "")}
    if len(fields) == 1 and isinstance(text := next(iter(fields.values())), str):
        return text
    if fields:
        return "\n".join(f"{name}: {_line(value)}" for name, value in fields.items())
    return str((dumped.get("metadata") or {}).get("message", ""))


def action_class(environment: Any) -> Any:
    """What ``step`` takes. Raises ``TypeError`` if unknown."""
    try:
        hints = get_type_hints(environment.step)
    except Exception:  # an annotation may name an import for checkers only
        hints = {}
    parameters = list(inspect.signature(environment.step).parameters)[1:]
    candidates = [hints.get(name) for name in parameters[:1]]
    for base in getattr(environment, "__orig_bases__", ()):
        candidates += get_args(base)[:1]
    for candidate in candidates:
        if isinstance(candidate, type) and hasattr(candidate, "model_fields") and _content(candidate):
            return candidate
    raise TypeError(f"the action of {environment.__name__} is not known: say what a reply means with act=")


def action_of(action: Any, text: str) -> Any:
    """One required field takes the whole reply, converted if a number; several are JSON. Raises ``ValueError``."""
    fields = _content(action)
    required = [name for name, field in fields.items() if field.is_required()]
    named = required or list(fields)
    if len(named) > 1:
        return action.model_validate_json(text)  # its ValidationError is a ValueError
    field = fields[named[0]]
    value = text if field.annotation is str else text.strip()
    if field.annotation not in (str, int, float):
        return action.model_validate_json(text) if text.lstrip().startswith("{") else action(**{named[0]: value})
    return action(**{named[0]: value})


def _content(action: Any) -> dict[str, Any]:
    return {name: field for name, field in action.model_fields.items() if name not in _NO_CONTENT}


def _line(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, default=str)


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
    the text for an observation. The reward is the sum over the steps. Each episode has its own instance.

    A reply that cannot be read, or a first reply that calls none of the MCP tools, ends the episode as invalid. Its
    reward is ``unreadable``, or else one less than it earned so far, and than 0; in training at most the least of its
    group.

    Raises ``TypeError`` if ``act`` is needed.
    """
    made = _found(environment) if isinstance(environment, str) else environment
    title = name or str(getattr(made, "__name__", type(made).__name__))
    has_tools = isinstance(made, type) and any(base.__name__ == "MCPEnvironment" for base in made.__mro__)
    read = act if act is not None or has_tools else functools.partial(action_of, action_class(made))

    @own_random
    async def play(ep: Episode) -> float:
        world = made(**options)
        try:
            session = _Session(world, ep, unreadable)
            opening = describe(await session.reset())
            if read is not None:
                await session.play(opening, read, describe, system, max_turns)
            else:
                await ep.agent(system=system, tools=await session.tools()).act(opening, max_turns=max_turns)
                if not session.steps:  # the world paid nothing
                    raise unreadable_reply(ep, "the reply calls none of the tools", session.earned, unreadable)
            return session.earned
        finally:
            world.close()

    return levelling(declared(play, title, f"The OpenEnv environment {title}.", timeout=timeout))


class _Session:
    def __init__(self, world: Any, ep: Episode, unreadable: float | None) -> None:
        self.earned = 0.0
        self._unreadable = unreadable
        self._world = world
        self._ep = ep
        self._done = False
        self.steps = 0

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
        self.steps += 1
        self._ep.log(steps=self.steps)
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
