"""What the stages hand to each other: episodes, their trajectories, and the groups that are trained on.

Rewards come from the environments, tokens from the rollout; both go through the store to the trainer. The classes are
frozen, picklable and hold numpy arrays at most: a stage that needs tensors makes them itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Tokens = NDArray[np.int32]
Mask = NDArray[np.uint8]
Logprobs = NDArray[np.float32]

Split = Literal["train", "eval", "test"]
"""Whose instances: those of training; held-out ones that choose the best version; those measured once, at the end."""
EpisodeStatus = Literal["ok", "skip", "timeout", "error", "cancelled"]


@dataclass(frozen=True)
class Span:
    """Tokens ``start`` to ``stop`` (exclusive) of a trajectory, sampled by one policy version."""

    start: int
    stop: int
    version: int
    fork: bool = False
    """Whether it was said in a fork without a name: the same agent in another conversation, whose replies have no
    place among those that ``TurnReward.turns`` counts."""
    advantage: float | None = None
    """Of this turn, if turns have advantages of their own; None: it has that of its trajectory."""


@dataclass(frozen=True)
class Trajectory:
    """One agent's tokens in one episode: prompts, replies and tool results in the order in which the model saw them.

    An agent has several of them, in order, where the base's chat template rewrites earlier turns, and where the agent
    forks: each holds the whole history as the model saw it, and marks as sampled only the replies that are its own.
    """

    agent: str
    tokens: Tokens
    """int32 (T,)"""
    mask: Mask
    """uint8 (T,): 1 if the policy sampled the token, 0 if it was given."""
    logprobs: Logprobs
    """float32 (T,): of the distribution sampled from; 0 if the mask is 0."""
    spans: tuple[Span, ...]
    """One per turn, in order; together they cover exactly the masked tokens."""
    reward: float | None = None
    """None if the episode has no reward: such a trajectory is never trained on."""
    advantage: float = 0.0
    """Of the whole episode; fixed when the group closes, with those of its turns (``Span.advantage``)."""
    cut: bool = False
    """Whether the length limit ended the agent's last reply in this episode; equal in all its trajectories."""

    def judged(self, advantage: float, spans: tuple[Span, ...]) -> Trajectory:
        """The same with its advantages; several times as fast as ``dataclasses.replace``, for every episode."""
        return Trajectory(self.agent, self.tokens, self.mask, self.logprobs, spans, self.reward, advantage, self.cut)

    @property
    def sampled(self) -> int:
        """Tokens that the policy sampled."""
        return int(np.count_nonzero(self.mask))


@dataclass(frozen=True)
class TurnReward:
    """A part of an agent's reward that was paid during the episode: for people, and for the advantages of turns."""

    agent: str
    turns: int
    """Replies that the agent had given by then in its own conversation, without those of its forks."""
    amount: float
    name: str = ""


@dataclass(frozen=True)
class Failure:
    """What went wrong in an environment, with the place, for the author of the plugin."""

    message: str
    file: str = ""
    line: int = 0
    traceback: str = ""


@dataclass(frozen=True)
class Turn:
    """When an agent was asked, and when it had answered, in seconds since the episode began to be played."""

    agent: str
    asked: float
    answered: float


@dataclass(frozen=True)
class Timing:
    """When what happened in an episode, by the engine's clock, in seconds since it began to be played."""

    turns: tuple[Turn, ...]
    """In the order in which they were asked; those without an answer are missing."""
    over: float
    """When nothing more was asked; until it ended it was scored, or waited for that."""
    ended: float


@dataclass(frozen=True)
class Episode:
    """One run of an environment function."""

    member: int
    """Its number among those that began with the group, from 0."""
    status: EpisodeStatus
    trajectories: tuple[Trajectory, ...]
    parts: dict[str, float] = field(default_factory=dict)
    """Named parts of the score (logged, not trained)."""
    metrics: dict[str, float | str] = field(default_factory=dict)
    """What the environment logged."""
    failure: Failure | None = None
    """Why it failed; with status ok, the exception for which the environment pays ``on_error``."""
    seconds: float = 0.0
    paid: tuple[TurnReward, ...] = ()
    """In the order in which they were paid."""
    timing: Timing | None = field(default=None, compare=False)
    """None if it was not played by this engine."""

    def having(self, trajectories: tuple[Trajectory, ...]) -> Episode:
        """The same with other trajectories; as fast as ``Trajectory.judged``."""
        return Episode(
            self.member,
            self.status,
            trajectories,
            self.parts,
            self.metrics,
            self.failure,
            self.seconds,
            self.paid,
            self.timing,
        )


@dataclass(frozen=True)
class Dropped:
    """The members that a group closed without, because others were first (``[train] redundant``).

    Most were cancelled, so what is known of them ends there: their seconds and tokens are the least that they can be.
    """

    begun: int
    """Members that began with the group, those that closed it included."""
    members: int
    """Those that were dropped."""
    seconds: float
    """For how long these had been played by then, together."""
    tokens: int
    """What the policy had written in them by then."""
    closing_seconds: float
    """For how long the members were played that closed the group, together."""
    rewards: tuple[float, ...] = ()
    """Of dropped members that had ended all the same."""
    slower: float | None = None
    """How much better the slower half of the members that closed the group was rewarded than the faster half; None
    where fewer than two have a reward."""


@dataclass(frozen=True)
class Group:
    """``group_size`` episodes of one instance, all begun with the policy version current at admission."""

    number: int
    """Its place in the policy's sequence of groups; step k consumes kB … kB+B-1."""
    index: int
    """The instance: which draw of the environment's split."""
    version: int
    """The policy version that all members are pinned to."""
    environment_version: str
    episodes: tuple[Episode, ...]
    replaced: int = 0
    """Earlier groups of this number that it replaced because their rewards were equal (dynamic sampling)."""
    lost: int = 0
    """Members that failed each time they were played; those of draws that were given up under this number count."""
    replayed: int = 0
    """Plays of members that had failed before, of those draws, too."""
    component: str = ""
    """Which environment of a mixture was played, by its name in the task; empty if there is no mixture."""
    dropped: Dropped | None = None
    """Of the play that closed it; None if no member is redundant."""


@dataclass(frozen=True)
class Transcript:
    """A trajectory as people read it: (role, text) per turn, thinking as a turn of its own before its answer.

    An agent's later trajectories hold only what is new in them, so that all of them in order are the conversation.
    """

    turns: tuple[tuple[str, str], ...] = ()
    places: tuple[int, ...] = field(default=(), compare=False)
    """The place of each turn among all turns of the episode, in the order in which they were said, from 0. Who is first
    of those that were asked at once depends on timing, so two equal episodes may differ in it."""


Transcripts = dict[tuple[int, str, int], Transcript]
"""The transcripts of a group, by (member, agent, place among the agent's trajectories)."""
