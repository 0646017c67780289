"""Gymnasium environments, and all classes with ``reset(seed) -> (observation, info)`` and a five-part ``step``.

The model gets each observation as text (``describe``), and each reply becomes an action: by the world's action space
(``action_spaces``), or by the author's ``act``. A reply without an action ends the episode (``unreadable``); it never
reaches the world.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from ..environment import Environment
from ..episode import Episode
from .action_spaces import action_of, allowed
from .declaring import declared
from .library import library
from .own_random import own_random
from .unreadable import NO_ACTION, levelling, unreadable_reply


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
    ``unreadable``, or else one less than it earned so far, and than 0; in training it is at most the least reward of
    its group, so that it never pays to be unreadable.
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
