"""What the readers of rollouts get: frozen rows, from the trend over steps down to the tokens of one conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ..rows import Turn

TRAIN, EVAL = "train", "eval"


@dataclass(frozen=True)
class StepSummary:
    """The groups that one step has consumed, or that one held-out evaluation has played."""

    split: str
    """train or eval"""
    step: int | None
    """None: groups that no step has consumed yet."""
    groups: int
    reward: float | None
    """Mean over their episodes that have one; for an evaluation the score. None where it is not known."""
    failures: int
    """Trajectories whose episode did not end well."""


@dataclass(frozen=True)
class MemberSummary:
    """One conversation of a group."""

    member: int
    agent: str
    status: str
    reward: float | None


@dataclass(frozen=True)
class GroupSummary:
    """A group in one line."""

    id: int
    split: str
    number: int
    instance: int
    version: int
    environment_version: str
    step: int | None
    members: tuple[MemberSummary, ...]
    """In order; an agent's further trajectories are left out."""

    @property
    def rewards(self) -> list[float]:
        """Of those that have one."""
        return [member.reward for member in self.members if member.reward is not None]

    @property
    def staleness(self) -> int | None:
        """How many versions old its tokens were when they were trained on."""
        return self.step - 1 - self.version if self.split == TRAIN and self.step is not None else None


@dataclass(frozen=True)
class ConversationSummary:
    """One agent's conversation in one episode, in one line. Its id is that of its first trajectory."""

    id: int
    group: int
    """The group's id."""
    split: str
    number: int
    """The group's number."""
    step: int | None
    member: int
    agent: str
    status: str
    reward: float | None
    advantage: float
    tokens: int
    """Of its first trajectory."""
    policy: str = ""
    """Whose group it is in."""
    version: int = 0
    """Of that policy."""
    speaker: str = ""
    """Who spoke, where that was somebody else, who learns nothing from it."""
    spoke: int | None = None
    """The version that spoke, in the numbers of whoever it was; None where nobody said anything."""


@dataclass(frozen=True)
class Tokens:
    """The arrays of a trajectory, T tokens; empty where they were given up for room."""

    ids: Sequence[int] = ()
    """(T,)"""
    sampled: Sequence[int] = ()
    """(T,): 1 on what the policy sampled."""
    logprobs: Sequence[float] = ()
    """(T,): 0 where it was not sampled."""
    spans: tuple[tuple[int, int, int], ...] = ()
    """(start, stop, version) of each reply."""
    weights: Sequence[float] = ()
    """(N,): the logarithm of each sampled token's importance weight, trainer over sampler; NaN where it was not trained
    on. Empty where nothing is known of them."""


@dataclass(frozen=True)
class Paid:
    """A reward for a turn: part of the reward."""

    turns: int
    """Replies that the agent had had by then."""
    amount: float
    name: str


@dataclass(frozen=True)
class StoredTrajectory:
    """One trajectory of a conversation."""

    id: int
    length: int
    """Tokens, given up or not."""
    turns: tuple[Turn, ...]
    """What was said there for the first time."""
    tokens: Tokens


@dataclass(frozen=True)
class Conversation:
    """All that was recorded of one agent's conversation in one episode."""

    id: int
    task: int
    group: int
    """The group's id."""
    split: str
    number: int
    instance: int
    step: int | None
    version: int
    environment_version: str
    member: int
    agent: str
    status: str
    reward: float | None
    advantage: float
    cut: bool
    """Whether the length limit ended it."""
    seconds: float
    parts: tuple[StoredTrajectory, ...]
    """Its trajectories: several where the template rewrote what was said, or where the agent forked."""
    scores: dict[str, float] = field(default_factory=dict)
    """Named parts of the reward."""
    metrics: dict[str, Any] = field(default_factory=dict)
    """What the environment logged."""
    paid: tuple[Paid, ...] = ()
    """In the order in which they were paid."""
    failure: str = ""
    file: str = ""
    line: int = 0
    traceback: str = ""
    policy: str = ""
    """Whose group it is in."""
    speaker: str = ""
    """Who spoke, where that was somebody else, who learns nothing from it: a policy's name, or the words that mean a
    version."""
    play: int = 0
    """The first group of its play: the same for all agents of an episode."""

    @property
    def spoke(self) -> int:
        """The version that spoke, in the numbers of whoever it was."""
        spans = (span for part in self.parts for span in part.tokens.spans)
        return next((version for _, _, version in spans), self.version)

    @property
    def tokens(self) -> int:
        """Of all its trajectories."""
        return sum(part.length for part in self.parts)
