"""Gymnasium environments, and classes with ``reset(seed) -> (observation, info)`` and a five-part ``step``."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from typing import Any

from ..environment import Environment
from ..episode import Episode
from .declaring import NO_ACTION, declared, levelling, library, own_random, unreadable_reply

# Known by class name and ``from_jsonable``: Gymnasium is not needed. https://gymnasium.farama.org/api/spaces/

_SHOWN = 80
_WRONG = (ValueError, TypeError, AttributeError, LookupError, OverflowError, RecursionError, AssertionError)


def action_of(space: Any, text: str) -> Any:
    """Text for a space of text, a whole number for one of several actions, else JSON: lists for arrays, ``Tuple``,
    ``Sequence`` and ``OneOf`` (number of the space, its action), objects for ``Dict`` and ``Graph`` (``nodes``,
    optional ``edges`` and ``edge_links``).

    Raises ``ValueError`` without an action, ``TypeError`` for other spaces.
    """
    kind = type(space).__name__
    if kind == "Text":
        return allowed(space, text)
    if kind == "Discrete":
        return _whole(text, space)
    if not hasattr(space, "from_jsonable"):
        raise TypeError(f"the actions of this world are a {kind}: say what a reply means with act=")
    try:
        return allowed(space, _read(space, json.loads(text, parse_constant=_refuse)))
    except _WRONG:
        raise ValueError(f"an action is JSON that fits {space!s:.{_SHOWN}}") from None


def allowed(space: Any, action: Any) -> Any:
    """``ValueError`` if not in ``space``. None: no space."""
    try:
        fits = space is None or action in space
    except Exception:  # a custom space, and an unexpected action
        fits = False
    if not fits:
        raise ValueError(f"the world does not take the action {action!r:.{_SHOWN}}")
    return action


def _whole(text: str, space: Any) -> int:
    stripped = text.strip()
    digits = stripped.removeprefix("-")
    if not (len(digits) < 20 and digits.isascii() and digits.isdigit() and int(stripped) in space):
        raise ValueError(f"an action is a whole number from {space.start} to {space.start + space.n - 1}")
    return int(stripped)


def _read(space: Any, value: Any) -> Any:
    match type(space).__name__:
        case "Text":
            return value
        case "Tuple":
            return tuple(_read(inner, part) for inner, part in zip(space.spaces, value, strict=True))
        case "Dict":
            return {key: _read(space.spaces[key], part) for key, part in value.items()}
        case "OneOf":
            place, part = value
            if isinstance(place, bool) or not 0 <= place < len(space.spaces):
                raise ValueError("no such space")
            return place, _read(space.spaces[place], part)
        case "Sequence" if not space.stack:
            return tuple(_read(space.feature_space, part) for part in value)
        case "Graph":
            return _graph(space, value)
        case "Box" if space.shape == (1,) and not isinstance(value, list):
            value = [value]
    (action,) = space.from_jsonable([value])
    if not _same(action, value):
        raise ValueError("it would become another value")
    return action


def _graph(space: Any, value: Any) -> Any:
    batched = {name: part if name == "edge_links" else [part] for name, part in value.items()}
    (graph,) = space.from_jsonable([batched])
    if not all(_same(part, value.get(name)) for name, part in graph._asdict().items()):
        raise ValueError("it would become another value")
    return graph


def _same(action: Any, value: Any) -> bool:
    """Conversion to integers may cut or wrap."""
    if not hasattr(action, "tolist"):
        return True  # several arrays in a stack: the space checks them
    if getattr(getattr(action, "dtype", None), "kind", "") == "f":
        return bool((abs(action) < math.inf).all())
    return bool(action.tolist() == value)


def _refuse(name: str) -> Any:
    raise ValueError(f"{name} is no number")


def gymnasium(
    environment: str | Callable[..., Any],
    *,
    name: str | None = None,
    describe: Callable[[Any], str] = str,
    act: Callable[[str], Any] | None = None,
    system: str | None = None,
    max_turns: int = 50,
    timeout: float = 60.0,
    unreadable: float | None = None,
    **options: Any,
) -> Environment:
    """A Gymnasium world as an environment.

    ``environment``: an id for ``gymnasium.make``, a class, or a function; ``options`` go to it. ``describe``: the text
    for an observation. ``act``: the action that a reply means; it raises ``ValueError``, or ``KeyError`` as a dict
    does, if it means none. Without it a reply is the action itself where the world takes text, a whole number where
    it takes one of several actions, and JSON for all other action spaces. The reward is the sum over the steps.

    A reply that means no action, or one that is not in the action space, ends the episode as invalid. Its reward is
    ``unreadable``, or else one less than it earned so far, and than 0; in training at most the least of its group.
    """
    if isinstance(environment, str):
        title = environment
        make_registered = library("gymnasium").make

        def make() -> Any:
            return make_registered(environment, **options)
    else:
        title = getattr(environment, "__name__", type(environment).__name__)

        def make() -> Any:
            return environment(**options)

    @own_random
    async def play(ep: Episode) -> float:
        world = make()
        try:
            observation, _ = world.reset(seed=ep.rng.getrandbits(31))
            earned = 0.0
            for turn in range(1, max_turns + 1):
                reply = await ep.agent(system=system).ask(describe(observation))
                ep.log(turns=turn)
                try:
                    action = _action(world, act, reply.text)
                except NO_ACTION as error:
                    raise unreadable_reply(ep, error, earned, unreadable) from None
                observation, reward, terminated, truncated, _ = world.step(action)
                earned += float(reward)
                if terminated or truncated:
                    break
            return earned
        finally:
            if hasattr(world, "close"):
                world.close()

    return levelling(declared(play, name or title, f"The Gymnasium environment {title}.", timeout=timeout))


def _action(world: Any, act: Callable[[str], Any] | None, text: str) -> Any:
    space: Any = getattr(world, "action_space", None)
    if act is not None:
        return allowed(space, act(text))
    return text if space is None else action_of(space, text)
