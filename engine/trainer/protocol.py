"""Inputs and protocol of a trainer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..errors import AdapterError
from ..trajectories import Logprobs, Mask, Tokens

if TYPE_CHECKING:
    from .memory import TrainingState

Advantages: TypeAlias = "NDArray[np.float32]"


@dataclass(frozen=True)
class PolicyConfig:
    """All that decides a policy's updates."""

    rank: int = 16
    alpha: float = 32.0
    """Scale: alpha / rank."""
    targets: tuple[str, ...] = ()
    """As ``targeted``; empty: all linear layers."""
    loss: str = "dr_grpo"
    learning_rate: float = 5e-4
    schedule: str = "constant"
    """As ``TrainSpec.schedule``."""
    min_rate: float = 0.0
    """The share of the rate that is left at the end."""
    decay: int = 0
    """Of warmup_stable_decay: its last steps."""
    warmup: int = 0
    steps: int = 0
    """Of the run; only for falling schedules."""
    epochs: int = 1
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    """Of AdamW: added to the root of the second moment."""
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    clip_low: float | None = None
    """Below 1 - clip_low; None: the loss's published value."""
    clip_high: float | None = None
    """Above 1 + clip_high; None: as published."""
    clip_dual: float | None = None
    """Largest ratio with a negative advantage; None: as published."""
    importance: str = "truncate"
    importance_cap: float = 2.0
    importance_floor: float = 0.0
    geometric_cap: float = 2.0
    """Largest geometric mean of a sequence's ratios; the smallest is its reciprocal."""
    kl: float = 0.0
    """Weight of the KL term; 0: off."""
    kl_in_reward: bool = False
    """The term is a reward of each token, not a part of the loss."""
    rewards: float = 1.0
    """What the advantages of rewards count beside it."""
    reference: str = ""
    """State file of the KL term, of any rank, and of DPO; empty: the base."""
    teacher: str = ""
    """Folder of another base that the KL term pulls to; empty: the trainer's own."""
    beta: float = 0.1
    """Of DPO: how much a log-ratio to the reference counts."""
    entropy: float = 0.0
    """Of the bonus, in loss per nat; 0: off."""
    entropy_target: float = 0.0
    """Above 0 the bonus changes by ``entropy`` after each step, towards this entropy in nats per token."""
    denominator: float = 1.0
    """Of a step's sums, if known before the first group."""
    temperature: float = 1.0
    """Of the rollouts."""
    seed: int = 0
    """Of the initial A matrices (B is zero)."""
    repeats: bool = False
    """Last bits must repeat: passes then borrow no cores."""


@dataclass(frozen=True)
class TrainSequence:
    """One trajectory for the loss."""

    tokens: Tokens
    """int32 (T,)"""
    mask: Mask
    """uint8 (T,): 1 on own tokens."""
    logprobs: Logprobs
    """float32 (T,): 0 if the mask is 0, NaN for tokens of a demonstration."""
    advantage: float
    """Of sampled tokens, unless ``advantages`` are given."""
    episode_tokens: int = 0
    """Trained tokens of the agent in this episode; 0: only this trajectory's."""
    proximal: Logprobs | None = None
    """float32 (T,): log-probabilities before the step's first update, for further epochs."""
    advantages: Advantages | None = None
    """float32 (T,): of turns; ignored at unsampled tokens."""
    shown: tuple[Tokens, Mask] | None = None
    """Tokens and mask as the teacher reads them: the same sampled tokens behind another prompt."""
    reference: Logprobs | None = None
    """float32 (n,), of the sampled tokens by a teacher that is no adapter of this base, or reads ``shown``."""


@dataclass(frozen=True)
class TrainGroup:
    """A closed group; calls may split a step's groups."""

    number: int
    sequences: tuple[TrainSequence, ...]


# Gradients of complete groups accumulate at fixed weights; ``step`` makes one optimizer step and one state file. Each
# backend passes ``tests/engine/trainer/contract.py``.


LogWeights: TypeAlias = "NDArray[np.float16]"
"""Log of trainer over sampler, unbounded, (N,)."""


@dataclass(frozen=True)
class Probe:
    """Tokens to score once a step is made."""

    sequences: tuple[tuple[Tokens, int], ...]
    """Tokens, int32 (T,), and index of the first to score."""
    before: bool = False
    """True: also before the step."""


@dataclass(frozen=True)
class Job:
    """One policy's groups; passes may be shared."""

    policy: str
    groups: tuple[TrainGroup, ...]
    probe: Probe | None = None
    """Of the step."""
    path: str = ""
    """State file of the completed step; empty: none."""


@dataclass(frozen=True)
class Refused:
    """A refused job."""

    reason: str
    hint: str = ""
    kind: type[AdapterError | ValueError] = AdapterError
    """``ValueError``: bad input. A task continues after a full disk only."""

    @classmethod
    def of(cls, error: AdapterError | ValueError) -> Refused:
        if isinstance(error, AdapterError):
            return cls(error.message, error.hint, type(error))
        return cls(str(error), kind=ValueError)

    def error(self) -> AdapterError | ValueError:
        return self.kind(self.reason, self.hint) if self.hint else self.kind(self.reason)


@dataclass(frozen=True)
class GroupStats:
    """Sums over one call's trained tokens; calls add up.

    A group without signal only counts its tokens, not in ``measured`` and sums of a pass.
    """

    tokens: int
    loss: float
    entropy: float
    """In nats."""
    clipped: int
    """Truncated or masked weights, or clipped ratios."""
    gap_sum: float
    """abs(trainer - sampler) log-probability, with the drift of stale tokens."""
    gap_max: float
    kl: float
    seconds: float
    measured: int = 0
    """Tokens of entropy, clipped, gap_sum and kl."""
    weights: Mapping[int, LogWeights] = field(default_factory=dict, compare=False)
    """Of sampled tokens, by group number, in order."""
    notice: str = field(default="", compare=False)
    """For the event log, or empty."""
    pairs: int = 0
    """Of DPO."""
    margins: float = 0.0
    """Their sum: beta times the difference of log-ratios to the reference, chosen minus rejected."""
    won: int = 0
    """Those above 0."""
    step: StepResult | None = field(default=None, compare=False)
    calls: float = field(default=1.0, compare=False)
    """A fraction for a shared call."""


@dataclass(frozen=True)
class StepResult:
    """An uncommitted state file on disk."""

    step: int
    """The new version's number."""
    path: str
    checksum: str
    """Of A and B, not moments: a sampler computes the same on load."""
    size: int
    grad_norm: float
    seconds: float
    divisor: float = 1.0
    learning_rate: float = 0.0
    notice: str = ""
    scores: tuple[Logprobs, ...] = ()
    """Of the probe, per sequence: float32 (T-start,), at the policy's temperature; those before the step come first."""


class PolicyTrainer(Protocol):
    """A trainer for one policy's learner.

    Calls for one policy come one at a time. All raise ``AdapterError``, or ``ValueError`` on bad input.
    """

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        """Bring a policy into memory, replacing an open one.

        ``resume`` reads the state file at ``path``; else version 0 is written there.
        """

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        """Add the groups' gradients; return sums over their tokens.

        With a ``path``, ``step`` follows in the call, and the ``probe`` is scored. Gradients repeat to the last bit if
        groups come one by one, in order.
        """

    async def step(self, policy: str, path: str) -> StepResult:
        """Clip, update, clear the gradients, write the state file (write, fsync, rename).

        Further ``epochs`` pass over all groups, each with an update. Raises ``AdapterError`` with the evidence if a
        loss or gradient is not finite; the step then has not happened.
        """

    async def close(self, policy: str) -> None:
        """Forget a policy, known or not."""


class Trainer(PolicyTrainer, Protocol):
    """A backend for many policies with concurrent calls."""

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        """``accumulate`` for several policies, each once, in shared passes.

        Equal to single calls except for the last bits.
        """

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """Log-probabilities, float32 (T-start,), of ``tokens[start:]``."""

    async def get_state(self, policy: str) -> TrainingState:
        """A policy's whole training; it stays open. Raises ``AdapterError``."""

    async def set_state(self, policy: str, state: TrainingState) -> None:
        """Open a policy with another trainer's state of the same base.

        Raises ``AdapterError`` if it does not fit; the policy is then not open.
        """
