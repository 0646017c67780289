"""One optimizer step, from a summed gradient: what it is divided by, the learning rate, clipping, epoch after epoch.

Groups are accumulated as they arrive, undivided, at fixed weights; the sum is divided once, at the step. So the update
is the same in whatever order and in however many calls the groups came, also for losses that are a mean over all tokens
of the step. The learning rate is a pure function of the configuration, so that a restart goes on with it: a rise over
the first ``warmup`` steps, then constant, or a fall to 0 after step ``steps`` that is linear or half a cosine (arXiv
1608.03983, equation 5, without restarts), as in the schedules of transformers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..errors import AdapterError
from ..spec import published
from .adamw import AdamState, adamw, clip
from .group_pass import Gradients
from .inputs import PolicyConfig
from .memory.policy_memory import PolicyMemory


@dataclass(frozen=True)
class Step:
    """The state of a policy after a step, before it is adopted."""

    optimised: AdamState
    grad_norm: float
    """Norm of the gradient before clipping; the largest of the step's updates."""
    divisor: float
    learning_rate: float


def make_step(gradients: Gradients, memory: PolicyMemory) -> Step:
    """Make all updates of the step. One whose gradient is zero changes nothing, not even the count of updates.

    Each epoch after the first makes a pass over every group with a signal again, at the weights that the epoch before
    left. Raises ``AdapterError``, with the evidence, if a loss or a gradient is not finite.
    """
    config = memory.config
    shared, rate = divisor(config, memory.tokens), learning_rate(config, memory.version)
    optimised, norm = _update(memory, memory.optimised, memory.gradient / shared, rate)
    for _ in range(1, config.epochs):
        ahead = PolicyMemory.holding(config, memory.layout, optimised, version=memory.version)
        ahead.reference = memory.reference
        gradients([(ahead, memory.rehearsal)])
        optimised, further = _update(ahead, optimised, ahead.gradient / shared, rate)
        norm = max(norm, further)
    return Step(optimised, norm, shared, rate)


def _update(memory: PolicyMemory, optimised: AdamState, gradient: Tensor, rate: float) -> tuple[AdamState, float]:
    config = memory.config
    gradient, norm = clip(gradient, config.clip_norm)
    if memory.fault or not np.isfinite(norm):
        raise AdapterError(
            f"The {'loss' if memory.fault else 'gradient'} is not finite, so step {memory.version + 1} was not made"
            f" ({memory.fault or f'its norm is {norm}, of {memory.tokens} trained tokens'}).",
            "A smaller learning rate usually helps; resume from the last committed step.",
        )
    if norm == 0.0:  # momentum and weight decay alone would move the adapter, though nothing was learnt
        return optimised, norm
    return adamw(optimised, gradient, rate, config.betas, config.weight_decay), norm


def divisor(config: PolicyConfig, tokens: int) -> float:
    """The divisor of a step of ``tokens`` trained tokens, those of groups without signal included."""
    return float(max(1, tokens)) if published(config.loss).mean == "token" else config.denominator


SCHEDULES = ("constant", "linear", "cosine")


def learning_rate(config: PolicyConfig, step: int) -> float:
    """The rate of the step that makes version ``step + 1``, where ``step`` counts from 0.

    The first step of a warm-up over n steps has 1/n of the full rate, the n-th the full rate. The last step of the run
    still has a rate above 0: the fall would reach 0 in the step after it.
    """
    if step < config.warmup:
        return config.learning_rate * (step + 1) / config.warmup
    if config.schedule == "constant":
        return config.learning_rate
    done = min(1.0, (step - config.warmup) / max(1, config.steps - config.warmup))
    left = 1.0 - done if config.schedule == "linear" else 0.5 * (1.0 + math.cos(math.pi * done))
    return config.learning_rate * left
