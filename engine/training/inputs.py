"""The inputs of a trainer: the configuration of a policy's updates, and the groups."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ..trajectories import Logprobs, Mask, Tokens

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
