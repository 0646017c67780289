"""Turns the play function of an adapter into a declared environment.

Simple settings of the foreign library become parameters of that ``Environment``.
"""

from __future__ import annotations

import functools
import importlib
import inspect
import random
import re
import sys
import types
from collections.abc import Awaitable, Callable, Coroutine, Generator, Mapping, Sequence
from typing import Any, Literal, TypeVar

from ..environment import Data, Environment, environment_of
from ..episode import Episode, run_tools_here
from ..rewards import Invalid, Member
from ..tools import Tool

# The library of each adapter, in the version of its test, as a pip requirement.

PINNED: dict[str, tuple[str, ...]] = {
    "reasoning_gym": ("reasoning-gym==0.1.25",),
    "gymnasium": ("gymnasium==1.4.0",),
    "textarena": ("textarena==0.7.4",),
    "verifiers": ("verifiers==0.1.14",),
    "verifiers_taskset": ("verifiers==0.4.0",),
    "openenv": ("openenv==0.10.0",),
    "program": (),
}

REQUIREMENT_OF_MODULE = {
    "reasoning_gym": PINNED["reasoning_gym"][0],
    "gymnasium": PINNED["gymnasium"][0],
    "gem": "gem-llm==0.1.0",
    "textarena": PINNED["textarena"][0],
    "verifiers": f"{PINNED['verifiers_taskset'][0]}, or {PINNED['verifiers'][0]} for load_environment",
    "openenv": PINNED["openenv"][0],
}


def dependencies_of(document: Mapping[str, Any]) -> tuple[str, ...]:
    """The requirements of a ``.toml`` plugin: its own ``dependencies``, or the defaults of every adapter in it.

    Raises ``ValueError`` if ``dependencies`` is no list of texts. An unknown adapter is skipped: loading reports it.
    """
    own = document.get("dependencies")
    if own is not None:
        if not isinstance(own, list) or not all(isinstance(entry, str) for entry in own):
            raise ValueError("dependencies must be a list of texts")
        return tuple(own)
    tables = document.get("environments", [document])
    adapters = [table.get("adapter") for table in tables if isinstance(table, dict)] if isinstance(tables, list) else []
    known = [adapter for adapter in adapters if isinstance(adapter, str) and adapter in PINNED]
    return tuple(dict.fromkeys(requirement for adapter in known for requirement in PINNED[adapter]))


def library(module: str) -> Any:
    """The module; ``ModuleNotFoundError`` has the command to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing(error) from None


def missing(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """The same error in words for the author of the plugin, at the same place in the code."""
    name = error.name or ""
    requirement = REQUIREMENT_OF_MODULE.get(name.partition(".")[0])
    if requirement is None:
        words = f"{error}: add what provides it to the plugin's dependencies"
    else:
        words = (
            f"this plugin needs {requirement}: add it to the plugin's dependencies, which a .py file names between the "
            f"comments '# /// script' and '# ///', and a .toml file under dependencies"
        )
    return ModuleNotFoundError(words, name=name).with_traceback(error.__traceback__)


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


# The answer in a model's reply: scorers of other libraries compare whole texts.

Extract = Callable[[str], str]

_OPENING, _CLOSING = "<answer>", "</answer>"


def whole(text: str) -> str:
    """The content of the last ``<answer>`` tag, else the whole reply, stripped."""
    start = text.rfind(_OPENING)
    if start < 0:
        return text.strip()
    inside = text[start + len(_OPENING) :]
    return inside.partition(_CLOSING)[0].strip()


def last_line(text: str) -> str:
    """The content of the last ``<answer>`` tag, else the last non-empty line."""
    return whole(text).rpartition("\n")[2].strip()


EXTRACTS: dict[str, Extract] = {"whole": whole, "last_line": last_line}


def extract_of(chosen: str | Extract) -> Extract:
    """The function of that name, or the author's own; the ``ValueError`` for another name lists the known ones."""
    if not isinstance(chosen, str):
        return chosen
    if chosen not in EXTRACTS:
        raise ValueError(f"extract must be one of {', '.join(EXTRACTS)} or a function, not {chosen!r}")
    return EXTRACTS[chosen]


# The reward of an episode that ended with an unreadable reply: in training the lowest of its group, or a policy would
# learn to be unreadable.

PENALTY = 1.0
"""How much less than it earned, and than 0, such an episode gets by default."""
NO_ACTION = (ValueError, LookupError)
"""Errors of reading an action from a reply without one; ``MOVES[text]`` is a natural way to read one."""
_FLAG = "unreadable"


def unreadable_reply(ep: Episode, reason: object, earned: float, reward: float | None) -> Invalid:
    """The error for an unreadable reply of ``ep``, logged as ``unreadable``; ``reward`` is the author's choice."""
    ep.log(**{_FLAG: 1.0})
    words = f"the reply means no action: {reason}" if isinstance(reason, LookupError) else str(reason)
    return Invalid(words, reward=own_reward(earned, reward))


def own_reward(earned: float, reward: float | None) -> float:
    """The reward of an episode that earned ``earned`` before its reply could not be judged."""
    return min(earned, 0.0) - PENALTY if reward is None else reward


def levelling(environment: Environment) -> Environment:
    """The same environment, with a ranking that never pays an unreadable reply more than a readable one."""
    environment.group(levelled)
    return environment


def levelled(episodes: Sequence[Member]) -> list[float]:
    """The rewards of a group's samples: unreadable replies get the lowest of all."""
    least = min(member.reward for member in episodes)
    return [least if member.logged.get(_FLAG) else member.reward for member in episodes]


# Makes functions of tools with a name, a description and a JSON schema: the signature repeats the schema.

Call = Callable[[dict[str, Any]], Awaitable[Any]]
_TYPES: dict[object, Any] = {
    "string": str,
    "integer": int,
    "number": float,
    "boolean": bool,
    "array": list,
    "object": dict,
}


def described_tool(name: str, description: str, schema: Mapping[str, Any], call: Call) -> Tool:
    """A function of that name; ``schema``: the JSON schema of its arguments, an object with properties.

    Facts that a signature cannot express, such as bounds, are left out.
    """

    async def tool(**arguments: Any) -> Any:
        return await call(arguments)

    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties") or {}
    required = schema.get("required") or ()
    usable = {argument: facts for argument, facts in properties.items() if argument.isidentifier()}
    tool.__name__ = tool.__qualname__ = name
    tool.__doc__ = "\n".join([description, *_about(usable)]).strip()
    tool.__signature__ = inspect.Signature(  # type: ignore[attr-defined]
        [
            inspect.Parameter(
                argument,
                inspect.Parameter.KEYWORD_ONLY,
                default=inspect.Parameter.empty if argument in required else facts.get("default"),
                annotation=_annotation(facts),
            )
            for argument, facts in usable.items()
        ]
    )
    return tool


def _about(properties: Mapping[str, Mapping[str, Any]]) -> list[str]:
    return [f"{name}: {facts['description']}" for name, facts in properties.items() if facts.get("description")]


def _annotation(facts: Mapping[str, Any]) -> Any:
    if facts.get("enum"):
        return Literal[tuple(facts["enum"])]
    kind = facts.get("type")
    found = _TYPES.get(kind) if isinstance(kind, str) else None
    if found is None:
        return Any
    inner = facts.get("items")
    if found is list and isinstance(inner, Mapping) and (of := _annotation(inner)) is not Any:
        return list[of]  # type: ignore[valid-type]
    return found


# Gives every episode its own ``random``: many environments draw from the global one (or numpy's). Its state is
# exchanged whenever an episode's coroutine continues, and restored whenever it waits.

T = TypeVar("T")
Play = Callable[..., Coroutine[Any, Any, T]]


class OwnRandom:
    """A state of the global generators, active inside ``with``."""

    def __init__(self, seed: int) -> None:
        self._state = random.Random(seed).getstate()
        self._numpy: Any = getattr(sys.modules.get("numpy"), "random", None)
        self._numpy_state = None if self._numpy is None else self._numpy.RandomState(seed % (1 << 32)).get_state()

    def __enter__(self) -> None:
        self._exchange()

    def __exit__(self, *_: object) -> None:
        self._exchange()

    def _exchange(self) -> None:
        outside = random.getstate()
        random.setstate(self._state)
        self._state = outside
        if self._numpy is not None:
            numpy_outside = self._numpy.get_state()
            self._numpy.set_state(self._numpy_state)
            self._numpy_state = numpy_outside


def own_random(play: Play[T]) -> Play[T]:
    """Give every episode of a play function its own global generators, seeded from the instance."""

    @functools.wraps(play)
    async def playing(ep: Any, **options: Any) -> T:
        run_tools_here(ep)  # elsewhere they would draw from another episode's generators
        return await swapped(play(ep, **options), OwnRandom(ep.rng.getrandbits(32)))

    return playing


@types.coroutine
def swapped(coroutine: Coroutine[Any, Any, T], own: OwnRandom) -> Generator[Any, Any, T]:
    """Run a coroutine with ``own`` as the global state, only while it runs."""
    go_on: Callable[[Any], Any] = coroutine.send
    given: Any = None
    while True:
        try:
            with own:
                awaited = go_on(given)
        except StopIteration as done:
            result: T = done.value
            return result
        try:
            given = yield awaited
            go_on = coroutine.send
        except GeneratorExit:
            coroutine.close()
            raise
        except BaseException as error:  # a cancellation, above all: it belongs to the coroutine
            given, go_on = error, coroutine.throw
