"""Scoring and ranking apart from playing: what these optional pure functions see, and what they may return.

Both see what was said in episodes that are over, and return finite rewards by agent. Neither asks the model; in which
process they run is not known here.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from .json_values import not_json
from .messages import Message, within_limits
from .rewards import Rewards, rewards_of

Function = TypeVar("Function", bound=Callable[..., Any])


@dataclass(frozen=True)
class Transcript:
    """What was said in an episode."""

    agents: Mapping[str, tuple[Message, ...]]
    """By agent, all that it heard and said: system, user, assistant and tool messages in order, without its thinking.
    An agent that was never asked has no entry. Its forks without a name speak in its own; a fork with a name has one,
    which begins where it left."""

    @property
    def messages(self) -> tuple[Message, ...]:
        """The conversation of the only agent; ``ValueError`` where there are several."""
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
        """Its own reward, if there is one agent; ``ValueError`` where there are several."""
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
    """``task`` as it is; ``TypeError`` where JSON cannot carry it to where it is scored, ``ValueError`` where it is
    nested too deeply or has too many entries."""
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
