"""One step of a policy: its gradient becomes one update, or one in each epoch, on copies of its vectors.

A policy in memory flows in and stays as it is, so that a step whose state file cannot be written has not happened; the
vectors after it flow out. Knows nothing of files.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from ..errors import AdapterError
from .adamw import AdamState, adamw, clip
from .group_pass import Gradients
from .normaliser import divisor
from .policy_memory import PolicyMemory
from .schedule import learning_rate


@dataclass(frozen=True)
class Step:
    """What a policy is about to become."""

    optimised: AdamState
    grad_norm: float
    """Before clipping, the largest of its updates."""
    divisor: float
    learning_rate: float


def make_step(gradients: Gradients, memory: PolicyMemory) -> Step:
    """All updates of the step; epochs after the first run every group with a signal again, at the weights before.

    Raises ``AdapterError``, with the evidence, where a loss or a gradient is not finite.
    """
    config = memory.config
    shared, rate = divisor(config, memory.tokens), learning_rate(config, memory.version)
    optimised, norm = _update(memory, memory.optimised, memory.gradient / shared, rate)
    for _ in range(1, config.epochs):
        ahead = PolicyMemory.holding(config, memory.layout, optimised, version=memory.version)
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
    return adamw(optimised, gradient, rate, config.betas, config.weight_decay), norm
