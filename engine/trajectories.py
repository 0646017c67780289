"""Data between the stages: episodes, trajectories, groups.

The classes are frozen, picklable and hold at most numpy arrays: a stage makes its own tensors.
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
"""Training; held-out, to choose the best version; measured once, at the end."""
EpisodeStatus = Literal["ok", "skip", "timeout", "error", "cancelled"]


@dataclass(frozen=True)
class Span:
    """Tokens ``start`` to ``stop`` (exclusive), by one policy version."""

    start: int
    stop: int
    version: int
    fork: bool = False
    """True for a fork without a name, not counted in ``TurnReward.turns``."""
    advantage: float | None = None
    """None: that of the trajectory."""


@dataclass(frozen=True)
class Trajectory:
    """One agent's tokens in one episode, in the model's order.

    Several, in order, if the chat template rewrites earlier turns, or the agent forks. Each holds the whole history,
    and marks only its own replies as sampled.
    """

    agent: str
    tokens: Tokens
    """int32 (T,)"""
    mask: Mask
    """uint8 (T,): 1 if sampled by the policy, 0 if given."""
    logprobs: Logprobs
    """float32 (T,): of the sampled distribution; 0 if the mask is 0, NaN if given: a demonstration."""
    spans: tuple[Span, ...]
    """One per turn, in order; together the masked tokens."""
    reward: float | None = None
    """None: the episode has no reward; never trained on."""
    advantage: float = 0.0
    """Of the episode; fixed with those of turns."""
    cut: bool = False
    """The length limit ended the agent's last reply; equal in all its trajectories."""

    def judged(self, advantage: float, spans: tuple[Span, ...]) -> Trajectory:
        """Several times as fast as ``dataclasses.replace``."""
        return Trajectory(self.agent, self.tokens, self.mask, self.logprobs, spans, self.reward, advantage, self.cut)

    @property
    def sampled(self) -> int:
        return int(np.count_nonzero(self.mask))

    @property
    def given(self) -> bool:
        """A demonstration: nobody sampled its replies."""
        return bool(self.spans) and bool(np.isnan(self.logprobs[self.spans[0].start]))


@dataclass(frozen=True)
class TurnReward:
    """Part of an agent's reward, paid during the episode."""

    agent: str
    turns: int
    """Earlier replies in its own conversation, without forks."""
    amount: float
    name: str = ""


@dataclass(frozen=True)
class Failure:
    """An environment's error, with its place in the plugin."""

    message: str
    file: str = ""
    line: int = 0
    traceback: str = ""


@dataclass(frozen=True)
class Turn:
    """Of an ask and its answer, in seconds since the episode began."""

    agent: str
    asked: float
    answered: float


@dataclass(frozen=True)
class Timing:
    """By the engine's clock, in seconds since the episode began."""

    turns: tuple[Turn, ...]
    """In order of asks; unanswered ones are missing."""
    over: float
    """End of the last ask; until ``ended`` the episode was scored, or waited."""
    ended: float


@dataclass(frozen=True)
class Episode:
    """One run of an environment function."""

    member: int
    """Number within the group, from 0."""
    status: EpisodeStatus
    trajectories: tuple[Trajectory, ...]
    parts: dict[str, float] = field(default_factory=dict)
    """Of the score (logged, not trained)."""
    metrics: dict[str, float | str] = field(default_factory=dict)
    failure: Failure | None = None
    """With status ok, the exception paid with ``on_error``."""
    seconds: float = 0.0
    paid: tuple[TurnReward, ...] = ()
    """In order of payment."""
    timing: Timing | None = field(default=None, compare=False)
    """None if another engine ran it."""

    def having(self, trajectories: tuple[Trajectory, ...]) -> Episode:
        """As fast as ``Trajectory.judged``."""
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
    """Samples that a group closed without (``[train] redundant``).

    Most were cancelled: seconds and tokens are lower bounds.
    """

    begun: int
    """Those of the group included."""
    members: int
    seconds: float
    """Their duration by then, summed."""
    tokens: int
    """Written by the policy by then."""
    closing_seconds: float
    """Of the group's samples, summed."""
    rewards: tuple[float, ...] = ()
    """Of dropped samples that had ended."""
    slower: float | None = None
    """Slower half's mean reward minus the faster's; None if fewer than two have a reward."""


@dataclass(frozen=True)
class Group:
    """Episodes of one instance, begun with the version current at admission."""

    number: int
    """In the policy's sequence; step k consumes kB … kB+B-1."""
    index: int
    """The draw in the environment's split."""
    version: int
    """Of all samples."""
    environment_version: str
    episodes: tuple[Episode, ...]
    replaced: int = 0
    """Earlier groups, replaced for equal rewards (dynamic sampling)."""
    lost: int = 0
    """Failed each time, in abandoned draws, too."""
    replayed: int = 0
    """Repeated runs, in abandoned draws, too."""
    component: str = ""
    """Environment of a mixture; empty without one."""
    dropped: Dropped | None = None
    """None: no sample is redundant."""


@dataclass(frozen=True)
class Transcript:
    """A trajectory for people: (role, text) per turn, thinking as its own turn.

    An agent's later trajectories hold only new turns: all in order are the conversation.
    """

    turns: tuple[tuple[str, str], ...] = ()
    places: tuple[int, ...] = field(default=(), compare=False)
    """Each turn's place in time among the episode's, from 0. Simultaneous asks depend on timing, so equal episodes may
    differ in it."""


Transcripts = dict[tuple[int, str, int], Transcript]
"""By (sample, agent, place among the agent's trajectories)."""
