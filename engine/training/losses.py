"""Losses over a flat run of trained tokens, and the measurements taken beside them.

Log-probabilities and advantages flow in, a scalar to differentiate flows out, as a sum: the caller divides by the
constant denominator. Pure functions of tensors; they know nothing of models, padding or adapters. A further loss is one
more function in ``LOSSES``. Formulas and sources: Dr.GRPO (arXiv 2503.20783), truncated importance weights (verl,
rollout correction, C = 2), k3 (Schulman 2020, "Approximating KL divergence"; used so by GRPO, arXiv 2402.03300, eq. 4).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from .protocol import PolicyConfig


@dataclass(frozen=True)
class TokenView:
    """N trained tokens of one micro-batch."""

    logp: Tensor
    """float32 (N,): of the policy being trained; carries the gradient."""
    behaviour: Tensor
    """float32 (N,): of the policy that sampled."""
    advantage: Tensor
    """float32 (N,): each token has its sequence's."""
    sequence: Tensor
    """int64 (N,): which sequence of the micro-batch, ascending from 0; for losses over whole sequences."""
    proximal: Tensor | None = None
    """float32 (N,): of the policy before the step's first update; None in the first pass, where that is ``logp``."""


@dataclass(frozen=True)
class LossTerms:
    """What a loss returns."""

    total: Tensor
    """Scalar, summed over tokens, not yet divided."""
    clipped: int
    """Tokens whose weight was truncated or clipped."""


Loss = Callable[[TokenView, PolicyConfig], LossTerms]


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-probabilities of ``targets`` and entropies (nats, no gradient), each (N,), of softmax(logits / temperature).

    ``logits`` is (N, V), ``targets`` int64 (N,). The sampler draws from the same quotient, hence the division here.
    """
    if temperature != 1.0:
        logits = logits / temperature
    logprobs = torch.log_softmax(logits, dim=-1)  # (N, V)
    with torch.no_grad():
        entropy = -(logprobs.exp() * logprobs.clamp(min=-1e30)).sum(-1)  # the clamp: 0 · -inf is 0 here
    return logprobs.gather(-1, targets[:, None])[:, 0], entropy


def truncated_weights(logp: Tensor, behaviour: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """min(pi / pi_behaviour, cap) per token, detached, and which tokens were cut (bool); both (N,)."""
    ratio = (logp.detach() - behaviour).exp()
    return ratio.clamp(max=cap), ratio > cap


def dr_grpo(view: TokenView, config: PolicyConfig) -> LossTerms:
    """Sum of −w · A · log pi with w = min(pi / pi_behaviour, C) held constant: Dr.GRPO with truncated weights."""
    weights, cut = truncated_weights(view.logp, view.behaviour, config.importance_cap)
    return LossTerms(-(weights * view.advantage * view.logp).sum(), int(cut.sum()))


def kl_to_base(logp: Tensor, base_logp: Tensor) -> Tensor:
    """k3, (N,): exp(d) − d − 1 with d = log pi_base − log pi; not negative, and unbiased where pi itself sampled."""
    difference = base_logp - logp
    return difference.exp() - difference - 1.0


LOSSES: dict[str, Loss] = {"dr_grpo": dr_grpo}
"""Every loss by its name in a task file."""


def find_loss(name: str) -> Loss:
    """Return the loss of that name; raises ``ValueError`` naming those that exist."""
    if name not in LOSSES:
        raise ValueError(f"There is no loss named {name!r}; there are: {', '.join(sorted(LOSSES))}.")
    return LOSSES[name]
