"""What an environment function may return or raise, and the rewards by agent that come of it.

A result that is no reward raises ``TypeError`` or ``ValueError`` in words for the author; it never becomes a 0.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, TypeVar

from .json_values import not_json
from .messages import Message, within_limits

DEFAULT_AGENT = "agent"
"""The name of the agent that ``ep.ask`` asks."""
EVERY_AGENT = ""
"""The key under which ``earned`` holds what goes to every agent."""
LARGEST = 1e9
"""No reward or part is larger: their squares and sums stay finite, and their differences exact enough to train on."""


class Skip(Exception):
    """Raise it if this draw is no usable task: the episode counts for nothing, another instance takes its place."""


class Invalid(Exception):
    """Raise it if the agent broke the rules: the episode ends with ``reward`` for every agent and is trained on.

    What ``ep.reward`` earned is added. Any other exception is an error of the environment: such an episode has no
    reward, unless the environment declares ``on_error``.
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
        kind, text = "" if value is None else f"{type(value).__name__} ", repr(value)
        raise TypeError(f"{what} must be a number, not {kind}{text if len(text) <= 40 else f'{text[:37]}...'}")
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
    if isinstance(result, dict) and (done := [name for name in result if name in final]):
        raise ValueError(f"the reward of {done[0]!r} is final already, so it cannot be returned")
    names = [agent for agent in agents if agent not in final]
    earned = {name: total for name, total in earned.items() if name not in final}
    if final and (not names or (result is None and not earned)):
        return Rewards(dict(final), {})
    names = names or [DEFAULT_AGENT]
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
    return Rewards({**totals, **final}, parts)


def _value(result: object, what: str, parts: dict[str, float], prefix: str) -> float:
    if not isinstance(result, Score):
        return finite(result, what)
    for name, part in result.parts.items():
        parts[prefix + name] = finite(part, f"the part {name!r} of {what}")
    return finite(result.value, what)


# Scoring and ranking: what these optional pure functions see, and what they may return. Neither asks the model.

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Transcript:
    """What was said in an episode."""

    agents: Mapping[str, tuple[Message, ...]]
    """By agent, all that it heard and said in order, without its thinking. An agent that was never asked has no entry,
    nor has a fork without a name."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation of the only agent; ``ValueError`` if there are several."""
        if len(self.agents) > 1:
            raise ValueError(f"there are several agents: take one of transcript.agents: {', '.join(self.agents)}")
        return next(iter(self.agents.values()), ())

    @property
    def replies(self) -> tuple[Message, ...]:
        """What the only agent said, with its tool calls."""
        return tuple(message for message in self.messages if message.role == "assistant")

    @property
    def text(self) -> str:
        """The last reply of the only agent; empty if it said nothing."""
        replies = self.replies
        return replies[-1].content if replies else ""


@dataclass(frozen=True)
class Member:
    """An episode of a group, as the group's ranking sees it."""

    task: Any
    """The data row, or what the environment assigned to ``ep.task``, as JSON holds it."""
    transcript: Transcript
    rewards: Mapping[str, float]
    """The member's own rewards, by agent."""
    parts: Mapping[str, float] = field(default_factory=dict)
    """The named parts of its ``Score``."""
    logged: Mapping[str, float | str] = field(default_factory=dict)
    """What ``ep.log`` kept."""
    invalid: str = ""
    """Why the environment called its play invalid; empty if it did not."""

    @property
    def reward(self) -> float:
        """Its own reward, if there is one agent; ``ValueError`` if there are several."""
        if len(self.rewards) != 1:
            raise ValueError(f"there are several agents: take one of rewards: {', '.join(self.rewards)}")
        return next(iter(self.rewards.values()))


def checked(function: Function, environment: str, *arguments: str) -> Function:
    """``function`` as it is; ``TypeError`` unless it can be called with just these arguments."""
    try:
        inspect.signature(function).bind(*arguments)
    except TypeError:
        name = getattr(function, "__name__", "it")
        wanted = f"def {name}({', '.join(arguments)})"
        raise TypeError(f"{name} of the environment {environment} must take {wanted}") from None
    return function


def sendable(task: Any, environment: str) -> Any:
    """``task`` as it is; ``TypeError`` if JSON cannot carry it, ``ValueError`` if it is too deep or too large."""
    if fault := not_json(task):
        raise TypeError(
            f"{environment} is scored or ranked in another process, and JSON cannot carry its task there: {fault}"
        )
    within_limits(task, f"the task of {environment}")
    return task


def score_of(result: object, agents: Sequence[str], earned: Mapping[str, float]) -> Rewards:
    """Read what a score function returned: a number, a bool, a ``Score``, or a dict of them by agent.

    ``earned`` are the sums of ``ep.reward``; they are added. Raises ``TypeError`` or ``ValueError`` in words.
    """
    if result is None:
        raise TypeError("the score function returned None: return a number, a bool, a Score or a dict by agent")
    return rewards_of(result, agents, earned)


def ranks_of(result: object, members: Sequence[Member]) -> list[dict[str, float]]:
    """Read what a ranking returned: for each of ``members`` a number, or a dict by agent.

    Raises ``TypeError`` or ``ValueError`` in words.
    """
    if isinstance(result, str | bytes | Mapping) or not isinstance(result, Iterable):
        raise TypeError(f"the ranking must return a list of rewards, one for each episode, not {type(result).__name__}")
    values = list(result)
    if len(values) != len(members):
        raise ValueError(f"the ranking returned {len(values)} rewards for {len(members)} episodes")
    return [_rank(place, value, member) for place, (value, member) in enumerate(zip(values, members, strict=True))]


def _rank(place: int, value: object, member: Member) -> dict[str, float]:
    try:
        if value is None:
            raise TypeError("the reward must be a number, not None")
        return rewards_of(value, tuple(member.rewards), {}).by_agent
    except (TypeError, ValueError) as error:
        raise type(error)(f"the ranking of episode {place}: {error}") from None
