"""Data between the stages: episodes, their trajectories, and the groups that are trained on.

Rewards come from the environments, tokens from the rollout; both go through the store to the trainer. The classes are
frozen, picklable and hold at most numpy arrays: a stage makes its own tensors.
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
"""Instances for training; held-out ones that choose the best version; those measured once, at the end."""
EpisodeStatus = Literal["ok", "skip", "timeout", "error", "cancelled"]


@dataclass(frozen=True)
class Span:
    """Tokens ``start`` to ``stop`` (exclusive) of a trajectory, sampled by one policy version."""

    start: int
    stop: int
    version: int
    fork: bool = False
    """True for a fork without a name: the same agent in another conversation. Its replies do not count in
    ``TurnReward.turns``.
    """
    advantage: float | None = None
    """Of this turn, if turns have separate advantages; None: that of its trajectory."""


@dataclass(frozen=True)
class Trajectory:
    """One agent's tokens in one episode: prompts, replies and tool results in the model's order.

    An agent has several, in order, if the base's chat template rewrites earlier turns, or the agent forks. Each holds
    the whole history as the model saw it, and marks as sampled only its own replies.
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
    """True if the length limit ended the agent's last reply in this episode; equal in all its trajectories."""

    def judged(self, advantage: float, spans: tuple[Span, ...]) -> Trajectory:
        """The same with its advantages; several times as fast as ``dataclasses.replace``, for every episode."""
        return Trajectory(self.agent, self.tokens, self.mask, self.logprobs, spans, self.reward, advantage, self.cut)

    @property
    def sampled(self) -> int:
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
    """An error of an environment, with the place, for the author of the plugin."""

    message: str
    file: str = ""
    line: int = 0
    traceback: str = ""


@dataclass(frozen=True)
class Turn:
    """Times of an agent's ask and answer, in seconds since the episode began."""

    agent: str
    asked: float
    answered: float


@dataclass(frozen=True)
class Timing:
    """Times of an episode, by the engine's clock, in seconds since it began."""

    turns: tuple[Turn, ...]
    """In the order of the asks; those without an answer are missing."""
    over: float
    """Time of the last ask's end; until ``ended`` it was scored, or waited for that."""
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
    failure: Failure | None = None
    """Why it failed; with status ok, the exception for which the environment pays ``on_error``."""
    seconds: float = 0.0
    paid: tuple[TurnReward, ...] = ()
    """In order of payment."""
    timing: Timing | None = field(default=None, compare=False)
    """None if another engine ran it."""

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
    """The samples that a group closed without, because others were first (``[train] redundant``).

    Most were cancelled, so their seconds and tokens are lower bounds.
    """

    begun: int
    """Samples that began with the group, those that closed it included."""
    members: int
    seconds: float
    """Duration of these by then, summed."""
    tokens: int
    """Tokens that the policy had written in them by then."""
    closing_seconds: float
    """Duration of the samples that closed the group, summed."""
    rewards: tuple[float, ...] = ()
    """Of dropped samples that had ended anyway."""
    slower: float | None = None
    """Mean reward of the slower half of the closing samples minus that of the faster half; None if fewer than two have
    a reward.
    """


@dataclass(frozen=True)
class Group:
    """``group_size`` episodes of one instance, all begun with the policy version current at admission."""

    number: int
    """Its place in the policy's sequence of groups; step k consumes kB … kB+B-1."""
    index: int
    """The instance: the number of the draw in the environment's split."""
    version: int
    """The policy version of all samples."""
    environment_version: str
    episodes: tuple[Episode, ...]
    replaced: int = 0
    """Earlier groups of this number that it replaced because their rewards were equal (dynamic sampling)."""
    lost: int = 0
    """Samples that failed each time; those of abandoned draws of this number count."""
    replayed: int = 0
    """Repeated runs of failed samples, of those draws, too."""
    component: str = ""
    """Its environment of a mixture, by its name in the task; empty without a mixture."""
    dropped: Dropped | None = None
    """Of the play that closed it; None if no sample is redundant."""


@dataclass(frozen=True)
class Transcript:
    """A trajectory for people: (role, text) per turn, thinking as a separate turn before its answer.

    An agent's later trajectories hold only new turns, so that all of them in order are the conversation.
    """

    turns: tuple[tuple[str, str], ...] = ()
    places: tuple[int, ...] = field(default=(), compare=False)
    """The place of each turn among all turns of the episode in time, from 0. The order of simultaneous asks depends on
    timing, so two equal episodes may differ in it.
    """


Transcripts = dict[tuple[int, str, int], Transcript]
"""The transcripts of a group, by (sample, agent, place among the agent's trajectories)."""
