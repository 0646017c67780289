"""Frozen rows that the reads of rollouts return, from a summary of steps down to the tokens of one conversation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from ...rows import Turn

TRAIN, EVAL = "train", "eval"


@dataclass(frozen=True)
class StepSummary:
    """The groups that one step has consumed, or that one held-out evaluation has played."""

    split: str
    """train or eval"""
    step: int | None
    """The step; None: groups that no step has consumed yet."""
    groups: int
    reward: float | None
    """Mean over the episodes that have one; for an evaluation the score. None where it is not known."""
    failures: int
    """Trajectories whose episode did not end with status ok."""


@dataclass(frozen=True)
class MemberSummary:
    """One conversation of a group."""

    member: int
    agent: str
    status: str
    reward: float | None
    reply: str = ""
    """Its last reply, a long one shortened, as ``excerpts.Excerpt`` has it. Hostile text: a model wrote it."""
    replies: int = 0
    """Turns in which the agent answered."""
    distinct: int = 0
    """The number of its last reply among the distinct ones of the group, from 0: equal replies have the same."""


@dataclass(frozen=True)
class GroupSummary:
    """What a list shows of a group."""

    id: int
    split: str
    number: int
    instance: int
    version: int
    environment_version: str
    step: int | None
    members: tuple[MemberSummary, ...]
    """In order; an agent's further trajectories are left out."""
    suite: str = ""
    """The suite that it was played for, or ``test``; empty for the task's own held-out prompts, and in training."""
    prompt: str = ""
    """The beginning of what the first member was asked first, as ``excerpts.Excerpt`` has it. Hostile text."""

    @property
    def rewards(self) -> list[float]:
        """The rewards of the members that have one."""
        return [member.reward for member in self.members if member.reward is not None]

    @property
    def staleness(self) -> int | None:
        """How many versions old its tokens were when they were trained on; None where no step has consumed them."""
        return self.step - 1 - self.version if self.split == TRAIN and self.step is not None else None


@dataclass(frozen=True)
class ConversationSummary:
    """What a list shows of one agent's conversation in one episode. Its id is that of its first trajectory."""

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
    """Tokens of its first trajectory."""
    policy: str = ""
    """The policy that the group belongs to."""
    version: int = 0
    """Version of that policy that the group was played with."""
    speaker: str = ""
    """Who spoke, if that was not ``policy``: a policy or a version that is not trained on it."""
    spoke: int | None = None
    """The version that spoke, among those of whoever spoke; None if nothing was said."""
    prompt: str = ""
    """The beginning of what it was asked first, as ``excerpts.Excerpt`` has it. Hostile text, as the next."""
    reply: str = ""
    """Its last reply, a long one shortened."""
    replies: int = 0
    """Turns in which the agent answered."""


@dataclass(frozen=True)
class Tokens:
    """The arrays of a trajectory of T tokens; empty where they have been removed to free disk space."""

    ids: Sequence[int] = ()
    """(T,)"""
    sampled: Sequence[int] = ()
    """(T,): 1 where the policy sampled the token."""
    logprobs: Sequence[float] = ()
    """(T,): 0 where it was not sampled."""
    spans: tuple[tuple[int, int, int], ...] = ()
    """(start, stop, version) of each reply."""
    weights: Sequence[float] = ()
    """(N,): the logarithm of each sampled token's importance weight, trainer over sampler; NaN where it was not trained
    on. Empty where no weights are stored."""
    advantages: tuple[float | None, ...] = ()
    """Of each reply; None: it has that of the conversation. Empty where this is so for all."""


@dataclass(frozen=True)
class Paid:
    """A part of the reward that was paid during the episode."""

    turns: int
    """Replies that the agent had given by then."""
    amount: float
    name: str


@dataclass(frozen=True)
class StoredTrajectory:
    """One trajectory of a conversation."""

    id: int
    length: int
    """Its number of tokens, also where these have been removed."""
    turns: tuple[Turn, ...]
    """Turns that the conversation's earlier trajectories do not have."""
    tokens: Tokens
    places: tuple[int, ...] = ()
    """The place of each turn among all turns of the episode, in the order in which they were said, from 0."""


@dataclass(frozen=True)
class StoredConversation:
    """All that is stored of one agent's conversation in one episode."""

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
    component: str
    """Which environment of a mixture it was played on; empty where the task has none."""
    member: int
    agent: str
    status: str
    reward: float | None
    advantage: float
    cut: bool
    """Whether the length limit ended it."""
    seconds: float
    parts: tuple[StoredTrajectory, ...]
    """Its trajectories: several where the chat template rewrote earlier turns, or where the agent forked."""
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
    """The policy that the group belongs to."""
    speaker: str = ""
    """Who spoke, if that was not ``policy``: a policy's name, or the words that mean a version. It is not trained on
    this."""
    play: int = 0
    """Id of the first group of its play: the same for all agents of an episode."""
    order_known: bool = True
    """Whether it was written down who spoke when; else ``places`` are the most likely ones."""

    @property
    def spoke(self) -> int:
        """The version that spoke, among those of whoever spoke."""
        spans = (span for part in self.parts for span in part.tokens.spans)
        return next((version for _, _, version in spans), self.version)

    @property
    def tokens(self) -> int:
        """Tokens of all its trajectories."""
        return sum(part.length for part in self.parts)
