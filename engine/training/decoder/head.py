"""From hidden states to log-probabilities of the trained tokens, and back, one small tile of logits at a time.

The logits of a step can be larger than everything else together: 64 answers of 200 tokens with 152,000 entries are
7.8 GB. So they are computed in tiles that stay in the processor's cache, of which only running sums are kept: of the
exponentials, and of the head's rows weighted by them, both relative to the largest logit so far, as in flash attention
(Dao et al., arXiv 2205.14135). The second sum is all that the backward pass needs, whatever the loss: with
m = Σ softmax_v · W_v, the gradient of log-probability n is (W_target − m) / temperature, and the entropy is
log Σ exp − hidden · m / temperature. So logits are computed once for forward and backward pass.

An entropy bonus alone needs them again: the gradient of an entropy is −Σ p_v · (log p_v + entropy) · W_v / temperature,
whose weights are known only once the whole distribution is.

A head in bfloat16 on a processor is multiplied in bfloat16, which some do several times as fast. Logits keep their
float32 sums. The hidden states are rounded first, once, so that all that follows is of the same logits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...base import add_bfloat16_product, add_product, product, widened_product

Tile = tuple[int, int]
"""Size of a tile: places and entries of the vocabulary."""
CACHED: Tile = (512, 1024)
"""2 MiB of float32: stays in a processor's cache."""
WIDE: Tile = (2048, 16384)
"""128 MiB, for cards, where a call costs more than its memory."""


@dataclass(frozen=True)
class HeadTape:
    """What the backward pass needs."""

    mean: Tensor
    """(M, H): the mean of the head's rows, weighted by each place's distribution."""
    source: Tensor
    """(N,): which of the M places predicts each token."""
    targets: Tensor
    """(N,)"""
    hidden: Tensor
    """(M, H): the head's inputs, divided by the temperature."""
    total: Tensor
    """(M,): log Σ exp of each place's logits."""
    entropy: Tensor
    """(M,): of each place, in nats."""


def token_scores(
    hidden: Tensor,
    head: Tensor,
    source: Tensor,
    targets: Tensor,
    temperature: float | Tensor,
    tile: Tile = CACHED,
) -> tuple[Tensor, Tensor, HeadTape]:
    """Log-probabilities of ``targets`` and entropies (nats) of their distributions, both (N,), and the tape.

    Both are of softmax(hidden · headᵀ / temperature), from which the sampler draws, too. ``hidden`` is (M, H),
    ``head`` (V, H), in float32 or in a type that is widened tile by tile; ``temperature`` is one for all or that of
    each place, (M, 1).
    """
    cooled = _cooled(hidden, temperature, head)
    mean = torch.zeros_like(hidden)
    total = _normalisers(cooled, head, tile, mean)
    entropy = (total - _dot(cooled, mean)).clamp_(min=0.0)
    return (
        _of_targets(cooled, head, source, targets, total),
        entropy[source],
        HeadTape(mean, source, targets, cooled, total, entropy),
    )


def token_logprobs(
    hidden: Tensor,
    head: Tensor,
    source: Tensor,
    targets: Tensor,
    temperature: float | Tensor,
    tile: Tile = CACHED,
) -> Tensor:
    """The log-probabilities of ``token_scores`` alone, for half the work."""
    cooled = _cooled(hidden, temperature, head)
    return _of_targets(cooled, head, source, targets, _normalisers(cooled, head, tile, None))


def token_scores_backward(grad: Tensor, tape: HeadTape, head: Tensor, temperature: float | Tensor) -> Tensor:
    """Gradient by the hidden states, (M, H), from that by the log-probabilities, (N,)."""
    share = grad / (temperature if isinstance(temperature, float) else temperature[tape.source, 0])
    total = share.new_zeros(len(tape.mean)).index_put_((tape.source,), share, accumulate=True)
    result = tape.mean * total.neg_()[:, None]
    chosen = head[tape.targets].float().mul_(share[:, None])
    return result.index_put_((tape.source,), chosen, accumulate=True)  # same bits on a GPU, too, unlike index_add


def entropies_backward(
    grad: Tensor, tape: HeadTape, head: Tensor, temperature: float | Tensor, tile: Tile = CACHED
) -> Tensor:
    """Gradient by the hidden states, (M, H), from that by the entropies, (N,), for one more product of logits."""
    share = tape.total.new_zeros(len(tape.total)).index_put_((tape.source,), grad, accumulate=True)
    result = torch.zeros_like(tape.mean)
    rows, columns = tile
    for start in range(0, len(result), rows):
        part = slice(start, start + rows)
        total, entropy = tape.total[part, None], tape.entropy[part, None]
        for first in range(0, len(head), columns):
            entries = head[first : first + columns]
            logprobs = _logits(tape.hidden[part], entries).sub_(total)
            weights = logprobs.exp()
            _add_weighted(result[part], weights.mul_(logprobs.add_(entropy)), entries)
    factor = -share[:, None]
    return result.mul_(factor / temperature)


def _cooled(hidden: Tensor, temperature: float | Tensor, head: Tensor) -> Tensor:
    cooled = hidden if isinstance(temperature, float) and temperature == 1.0 else hidden / temperature
    return cooled.bfloat16().float() if _in_bfloat16(head) else cooled


def _in_bfloat16(head: Tensor) -> bool:
    """Whether products with it are of bfloat16 factors; a card's are of float32 ones."""
    return head.dtype == torch.bfloat16 and head.device.type == "cpu"


def _logits(hidden: Tensor, entries: Tensor, room: Tensor | None = None) -> Tensor:
    """float32 (n, m) of (n, H) and the head's ``entries`` (m, H); perhaps stored in ``room``."""
    if _in_bfloat16(entries):
        return widened_product(hidden, entries.T, room)
    return product(hidden, entries.float().T, room=room)


def _add_weighted(sums: Tensor, weights: Tensor, entries: Tensor) -> None:
    """Add to ``sums`` (n, H) the head's ``entries`` (m, H) by their ``weights`` (n, m)."""
    if _in_bfloat16(entries):
        add_bfloat16_product(sums, weights.bfloat16(), entries)
    else:
        add_product(sums, weights, entries.float())


def _normalisers(hidden: Tensor, head: Tensor, tile: Tile, mean: Tensor | None) -> Tensor:
    """log Σ exp(hidden · headᵀ), (M,); adds softmax(hidden · headᵀ) · head to ``mean`` (M, H), which is zero."""
    rows, columns = tile
    room = hidden.new_empty(min(rows, len(hidden)) * min(columns, len(head)))
    result = hidden.new_empty(len(hidden))
    for start in range(0, len(hidden), rows):
        part = hidden[start : start + rows]
        largest, total = part.new_full((len(part), 1), -torch.inf), part.new_zeros(len(part), 1)
        sums = None if mean is None else mean[start : start + rows]
        for first in range(0, len(head), columns):
            entries = head[first : first + columns]
            tiled = room[: len(part) * len(entries)].view(len(part), len(entries))
            weights = _logits(part, entries, tiled)
            above = torch.maximum(largest, weights.amax(1, keepdim=True))
            shrink = (largest - above).exp_()
            weights.sub_(above).exp_()
            total.mul_(shrink).add_(weights.sum(1, keepdim=True))
            if sums is not None:
                _add_weighted(sums.mul_(shrink), weights, entries)
            largest = above
        if sums is not None:
            sums.div_(total)
        result[start : start + rows] = total.log_().add_(largest)[:, 0]
    return result


def _of_targets(hidden: Tensor, head: Tensor, source: Tensor, targets: Tensor, total: Tensor) -> Tensor:
    return _dot(hidden[source], head[targets].float()).sub_(total[source])


def _dot(left: Tensor, right: Tensor) -> Tensor:
    """(n,) for (n, H) each."""
    result: Tensor = torch.linalg.vecdot(left, right)
    return result
