"""Gymnasium environments, and whatever else has ``reset(seed) -> (observation, info)`` and a five-part ``step``.

Each observation is told to the model as text, and an action is read from each reply. Worlds of text (GEM's, for one)
need nothing more; for others ``describe`` turns an observation into text, and ``act`` a reply into an action.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..definition import Environment
from ..episode import Episode
from ..rewards import Invalid
from .declaring import declared
from .library import library
from .own_random import own_random


def gymnasium(
    environment: str | Callable[..., Any],
    *,
    name: str | None = None,
    describe: Callable[[Any], str] = str,
    act: Callable[[str], Any] | None = None,
    system: str | None = None,
    max_turns: int = 50,
    timeout: float = 60.0,
    **options: Any,
) -> Environment:
    """A Gymnasium world as an environment.

    ``environment``: an id for ``gymnasium.make``, a class, or a function; ``options`` go to it. ``describe``: the text
    for an observation. ``act``: the action that a reply means; it raises ``ValueError`` where it means none, and the
    episode then ends as invalid with what was earned so far. Without it a reply is the action itself where the world
    takes text, and a whole number where it takes one of several actions. The reward is the sum over the steps.
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
                action = _action(world, act, reply.text, earned)
                observation, reward, terminated, truncated, _ = world.step(action)
                earned += float(reward)
                if terminated or truncated:
                    break
            return earned
        finally:
            if hasattr(world, "close"):
                world.close()

    return declared(play, name or title, f"The Gymnasium environment {title}.", timeout=timeout)


def _action(world: Any, act: Callable[[str], Any] | None, text: str, earned: float) -> Any:
    """The action that a reply means to a world; raises ``Invalid`` where it means none."""
    space: Any = getattr(world, "action_space", None)
    kind = type(space).__name__
    try:
        if act is not None:
            return act(text)
        if kind == "Discrete":
            return _whole(text, space)
        if kind == "Text" and text not in space:
            raise ValueError(f"the world does not take the text {text[:40]!r}")
    except ValueError as error:
        raise Invalid(str(error), reward=earned) from None
    if kind not in ("Text", "NoneType"):
        raise TypeError(f"the actions of this world are a {kind}: say what a reply means with act=")
    return text


def _whole(text: str, space: Any) -> int:
    stripped = text.strip()
    digits = stripped.removeprefix("-")
    if not (len(digits) < 20 and digits.isascii() and digits.isdigit() and int(stripped) in space):
        raise ValueError(f"an action is a whole number from {space.start} to {space.start + space.n - 1}")
    return int(stripped)
