"""From hidden states to log-probabilities of the trained tokens, and back, a bounded number of logits at a time.

The logits of a step can be larger than everything else together: 64 answers of 200 tokens at 152,000 entries are
7.8 GB. So they are made in chunks of places and, unless one chunk holds them all, made again for the backward pass.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

MAX_LOGITS = 1 << 25
"""128 MiB of float32."""


@dataclass(frozen=True)
class HeadTape:
    """What the backward pass needs."""

    hidden: Tensor
    """(M, H)"""
    source: Tensor
    """(N,): which of the M places predicts each token."""
    targets: Tensor
    """(N,)"""
    logprobs: Tensor | None
    """(M, V), kept where they fit into one chunk."""


def token_scores(
    hidden: Tensor, head: Tensor, source: Tensor, targets: Tensor, temperature: float, max_logits: int = MAX_LOGITS
) -> tuple[Tensor, Tensor, HeadTape]:
    """Log-probabilities of ``targets`` and entropies (nats) of where they came from, both (N,).

    Both are of softmax(hidden · headᵀ / temperature): the sampler draws from the same quotient.
    """
    logp, entropy = hidden.new_empty(len(targets)), hidden.new_empty(len(hidden))
    kept = None
    for places, logprobs in _chunks(hidden, head, temperature, max_logits):
        kept = logprobs if len(logprobs) == len(hidden) else None
        mine = (source >= places.start) & (source < places.stop)
        logp[mine] = logprobs[source[mine] - places.start, targets[mine]]
        torch.sum(logprobs.exp() * logprobs.clamp(min=-1e30), -1, out=entropy[places])  # the clamp: 0 · -inf is 0
    return logp, entropy.neg_()[source], HeadTape(hidden, source, targets, kept)


def token_scores_backward(
    grad: Tensor, tape: HeadTape, head: Tensor, temperature: float, max_logits: int = MAX_LOGITS
) -> Tensor:
    """Gradient by the hidden states, (M, H), from that by the log-probabilities, (N,).

    d logp_n / d logits = (onehot(target_n) − softmax) / temperature, at the place that predicts n.
    """
    result = torch.empty_like(tape.hidden)
    if tape.logprobs is not None:
        chunks = iter([(slice(0, len(tape.hidden)), tape.logprobs)])
    else:
        chunks = _chunks(tape.hidden, head, temperature, max_logits)
    for places, logprobs in chunks:
        mine = (tape.source >= places.start) & (tape.source < places.stop)
        source, share = tape.source[mine] - places.start, grad[mine] / temperature
        total = share.new_zeros(len(logprobs)).index_put_((source,), share, accumulate=True)  # same bits on a GPU, too
        by_logits = logprobs.exp().mul_(total.neg_()[:, None])
        by_logits.index_put_((source, tape.targets[mine]), share, accumulate=True)
        torch.mm(by_logits, head, out=result[places])
    return result


def _chunks(hidden: Tensor, head: Tensor, temperature: float, max_logits: int) -> Iterator[tuple[slice, Tensor]]:
    """Runs of places with their log-probabilities, (chunk, V)."""
    size = max(1, max_logits // len(head))
    for start in range(0, len(hidden), size):
        places = slice(start, min(start + size, len(hidden)))
        logits = torch.mm(hidden[places], head.T)
        if temperature != 1.0:
            logits.div_(temperature)
        yield places, torch.log_softmax(logits, -1)
