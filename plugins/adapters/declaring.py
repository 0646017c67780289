"""Declares an adapter's play function; simple settings become parameters."""

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

# Each adapter's tested library, as a pip requirement.

PINNED: dict[str, tuple[str, ...]] = {
    "reasoning_gym": ("reasoning-gym==0.1.25",),
    "gymnasium": ("gymnasium==1.4.0",),
    "textarena": ("textarena==0.7.4",),
    "verifiers": ("verifiers==0.1.14",),
    "verifiers_taskset": ("verifiers==0.4.0",),
    "openenv": ("openenv==0.10.0",),
    "program": (),
    "agent": (),
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
    """A ``.toml`` plugin's ``dependencies``, or its adapters' defaults.

    Raises ``ValueError`` unless a list of texts. Skips unknown adapters: loading reports them.
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
    """``ModuleNotFoundError`` has the command to get it."""
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing(error) from None


def missing(error: ModuleNotFoundError) -> ModuleNotFoundError:
    """In words for the author."""
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
    """Under a usable form of ``name``.

    ``options``: numbers, texts and booleans become parameters, ``play``'s keywords. ``agents``: if several.
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
    """Single values in task files."""
    return {
        name: value
        for name, value in options.items()
        if type(value) in (int, float, str, bool) and name.isidentifier() and name not in _RESERVED
    }


def usable(name: str) -> str:
    """At most 64 letters, digits, - and _."""
    return re.sub(r"[^A-Za-z0-9_-]+", "_", name)[:64].strip("_") or "environment"


async def settled(result: Any) -> Any:
    """Of a plain or ``async`` method."""
    return await result if inspect.isawaitable(result) else result


Extract = Callable[[str], str]

_OPENING, _CLOSING = "<answer>", "</answer>"


def whole(text: str) -> str:
    """In the last ``<answer>`` tag, else the stripped reply."""
    start = text.rfind(_OPENING)
    if start < 0:
        return text.strip()
    inside = text[start + len(_OPENING) :]
    return inside.partition(_CLOSING)[0].strip()


def last_line(text: str) -> str:
    """In the last ``<answer>`` tag, else the last non-empty line."""
    return whole(text).rpartition("\n")[2].strip()


EXTRACTS: dict[str, Extract] = {"whole": whole, "last_line": last_line}


def extract_of(chosen: str | Extract) -> Extract:
    """Named, or the author's. Raises ``ValueError``."""
    if not isinstance(chosen, str):
        return chosen
    if chosen not in EXTRACTS:
        raise ValueError(f"extract must be one of {', '.join(EXTRACTS)} or a function, not {chosen!r}")
    return EXTRACTS[chosen]


# Unreadable replies get their group's lowest reward, or a policy would learn to be unreadable.

PENALTY = 1.0
"""Below the earned reward, and below 0."""
NO_ACTION = (ValueError, LookupError)
"""``MOVES[text]`` is a natural way to read actions."""
_FLAG = "unreadable"


def unreadable_reply(ep: Episode, reason: object, earned: float, reward: float | None) -> Invalid:
    """Logged as ``unreadable``; ``reward`` is the author's."""
    ep.log(**{_FLAG: 1.0})
    words = f"the reply means no action: {reason}" if isinstance(reason, LookupError) else str(reason)
    return Invalid(words, reward=own_reward(earned, reward))


def own_reward(earned: float, reward: float | None) -> float:
    """The reward after ``earned``, without the unjudged reply."""
    return min(earned, 0.0) - PENALTY if reward is None else reward


def levelling(environment: Environment) -> Environment:
    """With a ranking that never pays unreadable replies more than readable ones."""
    environment.group(levelled)
    return environment


def levelled(episodes: Sequence[Member]) -> list[float]:
    """Unreadable replies get the group's lowest."""
    least = min(member.reward for member in episodes)
    return [least if member.logged.get(_FLAG) else member.reward for member in episodes]


# The signature repeats the JSON schema.

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
    """``schema``: arguments, an object with properties.

    Leaves out bounds and other facts that a signature cannot express.
    """

    async def tool(**arguments: Any) -> Any:
        return await call(arguments)

    properties: Mapping[str, Mapping[str, Any]] = schema.get("properties") or {}
    required = schema.get("required") or ()
    usable = {argument: facts for argument, facts in properties.items() if argument.isidentifier()}
    tool.__name__ = tool.__qualname__ = name
    about = [f"{argument}: {facts['description']}" for argument, facts in usable.items() if facts.get("description")]
    tool.__doc__ = "\n".join([description, *about]).strip()
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


# Many environments draw from the global ``random`` or numpy's: its state is exchanged while an episode's coroutine
# runs.

T = TypeVar("T")
Play = Callable[..., Coroutine[Any, Any, T]]


class OwnRandom:
    """Global generators' state, active inside ``with``."""

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
    """Seeded from the instance, for every episode."""

    @functools.wraps(play)
    async def playing(ep: Any, **options: Any) -> T:
        run_tools_here(ep)  # elsewhere they would draw from another episode's generators
        return await swapped(play(ep, **options), OwnRandom(ep.rng.getrandbits(32)))

    return playing


@types.coroutine
def swapped(coroutine: Coroutine[Any, Any, T], own: OwnRandom) -> Generator[Any, Any, T]:
    """``own`` is the global state only while it runs."""
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
