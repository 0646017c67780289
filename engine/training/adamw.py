"""One AdamW step on a flat vector (Loshchilov and Hutter, arXiv 1711.05101, algorithm 2).

It returns new weights and moments and does not change the old ones, so that a step whose state file could not be
written has not happened.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class AdamState:
    """A vector under optimisation: all float32 (P,)."""

    weights: Tensor
    moment1: Tensor
    moment2: Tensor
    step: int
    """Steps made so far."""

    def to(self, device: str) -> AdamState:
        """The state on another device."""
        return AdamState(self.weights.to(device), self.moment1.to(device), self.moment2.to(device), self.step)


def clip(gradient: Tensor, limit: float) -> tuple[Tensor, float]:
    """Scale the gradient down to an L2 norm of at most ``limit`` (0 is off); also return the norm before.

    The norm is summed in float64: its last bit must not depend on how many zeros pad the vector.
    """
    norm = float(torch.linalg.vector_norm(gradient, dtype=torch.float64))
    if limit > 0.0 and norm > limit:
        gradient = gradient * (limit / norm)
    return gradient, norm


def adamw(
    state: AdamState,
    gradient: Tensor,
    learning_rate: float,
    betas: tuple[float, float],
    weight_decay: float,
    epsilon: float = 1e-8,
) -> AdamState:
    """Return the state after one step along ``gradient`` (P,)."""
    step, (beta1, beta2) = state.step + 1, betas
    moment1 = torch.lerp(state.moment1, gradient, 1.0 - beta1)
    moment2 = torch.addcmul(state.moment2 * beta2, gradient, gradient, value=1.0 - beta2)
    denominator = (moment2 / (1.0 - beta2**step)).sqrt_().add_(epsilon)
    weights = state.weights * (1.0 - learning_rate * weight_decay)
    weights.addcdiv_(moment1, denominator, value=-learning_rate / (1.0 - beta1**step))
    return AdamState(weights, moment1, moment2, step)
