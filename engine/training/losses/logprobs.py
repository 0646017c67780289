"""From logits to log-probabilities."""

from __future__ import annotations

from contextlib import nullcontext

import torch
from torch import Tensor


def token_logprobs(logits: Tensor, targets: Tensor, temperature: float, bonus: bool = False) -> tuple[Tensor, Tensor]:
    """Log-probabilities of ``targets`` and entropies (nats), each (N,), of softmax(logits / temperature).

    ``logits`` is (N, V), ``targets`` int64 (N,). The sampler draws from the same distribution. The entropies have a
    gradient only where there is a ``bonus`` for them.
    """
    if temperature != 1.0:
        logits = logits / temperature
    logprobs = torch.log_softmax(logits, dim=-1)  # (N, V)
    with nullcontext() if bonus else torch.no_grad():
        entropy = -(logprobs.exp() * logprobs.clamp(min=-1e30)).sum(-1)  # the clamp: 0 · -inf is 0 here
    return logprobs.gather(-1, targets[:, None])[:, 0], entropy
