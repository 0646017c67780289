"""The inputs of a trainer: the configuration of a policy's updates, and the groups."""

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
    """The adapter's output is scaled by alpha / rank."""
    loss: str = "dr_grpo"
    learning_rate: float = 5e-4
    schedule: str = "constant"
    """constant, linear or cosine: how the learning rate falls to 0 at step ``steps``."""
    warmup: int = 0
    steps: int = 0
    """Steps of the whole run; only schedules that fall need it."""
    epochs: int = 1
    betas: tuple[float, float] = (0.9, 0.95)
    epsilon: float = 1e-8
    """Of AdamW: added to the root of the second moment."""
    weight_decay: float = 0.0
    clip_norm: float = 1.0
    clip_low: float | None = None
    """A ratio is clipped below 1 - clip_low; None: the loss's published value."""
    clip_high: float | None = None
    """A ratio is clipped above 1 + clip_high; None: the published value."""
    clip_dual: float | None = None
    """The largest ratio with a negative advantage; None: the published value."""
    importance: str = "truncate"
    importance_cap: float = 2.0
    importance_floor: float = 0.0
    geometric_cap: float = 2.0
    """With ``geometric_mask``: the largest geometric mean of a sequence's ratios; the smallest is its reciprocal."""
    kl: float = 0.0
    """Weight of the KL term to the base, or to ``reference``; 0 is off."""
    reference: str = ""
    """State file of the adapter that the KL term pulls to; empty: to the base."""
    entropy: float = 0.0
    """Weight of the entropy bonus, in loss per nat; 0 is off."""
    denominator: float = 1.0
    """The divisor of a step's sums, if it is known before the first group."""
    temperature: float = 1.0
    """Logits of the rollouts are divided by it before log-probabilities are taken."""
    seed: int = 0
    """Seed of the initial A matrices (B starts at zero)."""
    repeats: bool = False
    """True if the last bits must repeat: passes then borrow no cores."""


@dataclass(frozen=True)
class TrainSequence:
    """One trajectory as the loss sees it."""

    tokens: Tokens
    """int32 (T,)"""
    mask: Mask
    """uint8 (T,): 1 on the policy's own tokens."""
    logprobs: Logprobs
    """float32 (T,): behaviour log-probabilities, 0 if the mask is 0."""
    advantage: float
    """Of each sampled token, unless ``advantages`` are given."""
    episode_tokens: int = 0
    """Trained tokens of all the agent's trajectories in this episode; 0: this is the only one."""
    proximal: Logprobs | None = None
    """float32 (T,): log-probabilities before the step's first update; the trainer sets it for further epochs."""
    advantages: Advantages | None = None
    """float32 (T,): per token, if turns have their own advantages; ignored at tokens that were not sampled."""


@dataclass(frozen=True)
class TrainGroup:
    """A closed group. Its gradient is a sum, so groups may come in any number of calls."""

    number: int
    sequences: tuple[TrainSequence, ...]


# The trainer protocol: one base model in memory, an adapter with its own optimizer per policy.
#
# Gradients of complete groups accumulate at fixed weights, then ``step`` makes one optimizer step and writes one state
# file. ``tests/engine/trainer/contract.py`` holds the tests that each backend passes.
#


LogWeights: TypeAlias = "NDArray[np.float16]"
"""Logarithms of importance weights, trainer over sampler, before any bound, (N,)."""


@dataclass(frozen=True)
class Probe:
    """Tokens to score under the weights of a pass."""

    sequences: tuple[tuple[Tokens, int], ...]
    """Tokens, int32 (T,), and the index of the first to score."""


@dataclass(frozen=True)
class Job:
    """Groups of one policy that may share passes with those of others."""

    policy: str
    groups: tuple[TrainGroup, ...]
    probe: Probe | None = None
    path: str = ""
    """State file of the step that these groups complete; empty: they complete none."""


@dataclass(frozen=True)
class Refused:
    """The result of a job that was refused."""

    reason: str
    hint: str = ""
    bad_input: bool = False
    kind: type[AdapterError] = AdapterError
    """A task continues by itself after a full disk, but not after other errors."""

    @classmethod
    def of(cls, error: AdapterError) -> Refused:
        return cls(error.message, error.hint, kind=type(error))

    def error(self) -> ValueError:
        """The error that ``accumulate`` would have raised: ``AdapterError``, or ``ValueError`` on bad input."""
        return ValueError(self.reason) if self.bad_input else self.kind(self.reason, self.hint)


@dataclass(frozen=True)
class GroupStats:
    """Sums over the trained tokens of the groups of one call, so that calls add up to the step's means.

    A group without signal is skipped: its tokens count, but it adds nothing to ``measured`` and the sums of a pass.
    """

    tokens: int
    loss: float
    entropy: float
    """Sum over trained tokens, in nats."""
    clipped: int
    """Tokens whose importance weight was truncated or masked, or whose ratio was clipped."""
    gap_sum: float
    """Sum of abs(trainer - sampler) log-probability; includes the drift of stale tokens."""
    gap_max: float
    kl: float
    """Sum of the KL estimate to the base or to ``reference``; 0 without a KL term."""
    seconds: float
    measured: int = 0
    """Tokens that went through a pass: entropy, clipped, gap_sum and kl are sums over these."""
    weights: Mapping[int, LogWeights] = field(default_factory=dict, compare=False)
    """By group number: the weights of its sequences' sampled tokens, in order."""
    notice: str = field(default="", compare=False)
    """A sentence for the event log, or empty."""
    scores: tuple[Logprobs, ...] = field(default=(), compare=False)
    """Of the probe: by sequence, float32 (T-start,), at the policy's temperature."""
    step: StepResult | None = field(default=None, compare=False)
    calls: float = field(default=1.0, compare=False)
    """Calls of a trainer that passed over the groups; a fraction for a shared call."""


@dataclass(frozen=True)
class StepResult:
    """A state file on disk, ready to be committed."""

    step: int
    """Steps made so far, which is the number of the new version."""
    path: str
    checksum: str
    """Of the adapter's bytes (A and B, not moments): equal to what a sampler computes on load."""
    size: int
    grad_norm: float
    seconds: float
    divisor: float = 1.0
    """What the sums of the step's groups were divided by."""
    learning_rate: float = 0.0
    notice: str = ""


class PolicyTrainer(Protocol):
    """The part of a trainer that one policy's learner needs.

    Calls for one policy come one at a time; all raise ``AdapterError``, or ``ValueError`` on bad input.
    """

    async def open(self, policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        """Bring a policy into memory, in place of an open one, unfinished gradients included.

        ``resume`` reads the state file at ``path``; otherwise a fresh adapter is made and version 0 written there.
        """

    async def accumulate(
        self, policy: str, groups: tuple[TrainGroup, ...], probe: Probe | None = None, path: str = ""
    ) -> GroupStats:
        """Add the gradients of some groups at the current weights, and return the sums over their tokens.

        With a ``path`` they complete their step, and ``step`` follows in the same call. For a gradient that repeats to
        the last bit, give the groups one by one, in order. A ``probe`` is scored first.
        """

    async def step(self, policy: str, path: str) -> StepResult:
        """Finish the step: clip, update, clear the gradients, write the state file (write, fsync, rename).

        With ``epochs`` above 1, passes over all of the groups follow, each with an update. Raises ``AdapterError`` with
        the evidence if a loss or gradient is not finite; the step then has not happened.
        """

    async def close(self, policy: str) -> None:
        """Forget a policy; unknown names are fine."""


class Trainer(PolicyTrainer, Protocol):
    """A backend: it serves many policies, whose calls may be made at the same time."""

    async def accumulate_together(self, jobs: tuple[Job, ...]) -> tuple[GroupStats | Refused, ...]:
        """``accumulate`` for several policies, each at most once, in shared passes: one result per job.

        The update is that of single calls except for the last bits.
        """

    async def score(self, policy: str, tokens: Tokens, start: int, temperature: float) -> Logprobs:
        """Log-probabilities, float32 (T-start,), of ``tokens[start:]`` at the current weights."""

    async def get_state(self, policy: str) -> TrainingState:
        """All of a policy's training, between two of its calls; it stays open here. Raises ``AdapterError``."""

    async def set_state(self, policy: str, state: TrainingState) -> None:
        """Open a policy with another trainer's state of the same base.

        Raises ``AdapterError`` if it does not fit; the policy is then not open.
        """
