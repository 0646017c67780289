"""What an environment function may return or raise, and the rewards by agent that come of it.

Rewards are finite numbers by agent name, with named parts for the charts. A result that is no reward raises
``TypeError`` or ``ValueError`` in words for the author; it never becomes a 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

DEFAULT_AGENT = "agent"
"""The name of the agent that ``ep.ask`` asks."""
EVERY_AGENT = ""
"""The key under which ``earned`` holds what goes to every agent."""
LARGEST = 1e9
"""No reward or part is larger: their squares and sums stay finite, and their differences exact enough to train on."""


class Skip(Exception):
    """Raise it where this draw is no usable task: the episode counts for nothing, another instance takes its place."""


class Invalid(Exception):
    """Raise it where the agent broke the rules: the episode ends with ``reward`` and is trained on.

    The reward is that of every agent, and what ``ep.reward`` earned is added. Any other exception is an error of the
    environment: such an episode has no reward, unless the environment declares ``on_error``.
    """

    def __init__(self, message: str = "", reward: float = 0.0) -> None:
        super().__init__(message)
        self.reward = reward


class Score:
    """A reward with named parts: ``Score(0.8, spelling=1.0, length=0.6)``. Parts are charted, the value trains.

    All are finite numbers; the value need not be the sum of the parts.
    """

    def __init__(self, value: float, **parts: float) -> None:
        self.value = value
        self.parts = parts


@dataclass(frozen=True)
class Rewards:
    """What is known about an episode that ended well."""

    by_agent: dict[str, float]
    parts: dict[str, float]


def finite(value: object, what: str) -> float:
    """``value`` as a float; anything that is not a finite number is an error that names ``what``."""
    if not hasattr(type(value), "__float__"):
        kind = "" if value is None else f"{type(value).__name__} "
        raise TypeError(f"{what} must be a number, not {kind}{_short(value)}")
    try:
        number = float(value)  # type: ignore[arg-type]  # __float__ was just looked up: numpy's and torch's scalars too
    except OverflowError:  # a whole number larger than any float
        raise ValueError(f"{what} must lie between {-LARGEST:g} and {LARGEST:g}") from None
    if not math.isfinite(number):
        raise ValueError(f"{what} must be finite, not {number}")
    if abs(number) > LARGEST:
        raise ValueError(f"{what} must lie between {-LARGEST:g} and {LARGEST:g}, not {number:g}")
    return number


def rewards_of(
    result: object,
    agents: Sequence[str],
    earned: Mapping[str, float],
    final: Mapping[str, float] = MappingProxyType({}),
) -> Rewards:
    """Read what the function returned.

    A number or ``Score`` goes to every one of ``agents``, a dict to those that it names. ``earned`` are the sums of
    ``ep.reward``; they are added, and stand alone where the function returns nothing. Agents with a ``final`` reward
    have that, and nothing is added to it.
    """
    if final:
        return _beside(result, agents, earned, final)
    names = list(agents) or [DEFAULT_AGENT]
    totals: dict[str, float] = {}
    parts: dict[str, float] = {}
    if isinstance(result, dict):
        for name, value in result.items():
            if name not in names:
                raise ValueError(f"the reward names {name!r}, but the agents are {', '.join(names)}")
            prefix = f"{name}." if len(names) > 1 else ""
            totals[name] = _value(value, f"the reward of {name!r}", parts, prefix)
        if not totals:
            raise ValueError("an empty dict is no reward: name at least one agent")
    elif result is not None:
        value = _value(result, "the reward", parts, "")
        totals = dict.fromkeys(names, value)
    elif not earned:
        raise TypeError("the function returned None: return a number, a bool, a Score or a dict by agent")
    for name, extra in earned.items():
        if name not in names and name != EVERY_AGENT:
            raise ValueError(f"ep.reward names {name!r}, but the agents are {', '.join(names)}")
        for agent in names if name == EVERY_AGENT else (name,):
            totals[agent] = finite(totals.get(agent, 0.0) + extra, f"the reward of {agent!r}")
    return Rewards(totals, parts)


def _beside(result: object, agents: Sequence[str], earned: Mapping[str, float], final: Mapping[str, float]) -> Rewards:
    """The rewards of the agents that are not done, and those that are final."""
    if isinstance(result, dict) and (named := [name for name in result if name in final]):
        raise ValueError(f"the reward of {named[0]!r} is final already, so it cannot be returned")
    left = [agent for agent in agents if agent not in final]
    unsettled = {name: total for name, total in earned.items() if name not in final}
    if not left or (result is None and not unsettled):
        return Rewards(dict(final), {})
    others = rewards_of(result, left, unsettled)
    return Rewards({**others.by_agent, **final}, others.parts)


def _value(result: object, what: str, parts: dict[str, float], prefix: str) -> float:
    if not isinstance(result, Score):
        return finite(result, what)
    for name, part in result.parts.items():
        parts[prefix + name] = finite(part, f"the part {name!r} of {what}")
    return finite(result.value, what)


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 40 else text[:37] + "..."
