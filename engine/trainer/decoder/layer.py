"""One layer of the decoder, and its head with the loss over tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...models.kernels import (
    add_bfloat16_product,
    add_product,
    product,
    rms_norm,
    rms_norm_backward,
    rotate,
    swiglu,
    swiglu_backward,
    widened_product,
)
from ...models.tensors import Layer
from .attention import Attention
from .linear import Applied, Linear, Spans

# The logits of a step can be larger than everything else: 64 answers of 200 tokens with 152,000 entries are 7.8 GB. So
# they are computed in tiles that stay in the cache, and only running sums are kept: of the exponentials, and of the
# head's rows weighted by them, both relative to the largest logit so far, as in flash attention (Dao et al., arXiv
# 2205.14135). With m = Σ softmax_v · W_v, the gradient of log-probability n is (W_target − m) / temperature, and the
# entropy is log Σ exp − hidden · m / temperature. So logits are computed once for both passes.
#
# Only an entropy bonus needs them again: its gradient is −Σ p_v · (log p_v + entropy) · W_v / temperature.
#
# A head in bfloat16 on a processor is multiplied in bfloat16, with float32 sums; the hidden states are rounded once,
# first.

Tile = tuple[int, int]
CACHED: Tile = (512, 1024)
"""2 MiB of float32: stays in a processor's cache."""
WIDE: Tile = (2048, 16384)
"""128 MiB, for cards: there a call costs more than its memory."""


@dataclass(frozen=True)
class HeadTape:
    """What the backward pass of the head needs."""

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

    Both are of softmax(hidden · headᵀ / temperature), the sampler's distribution. ``hidden`` is (M, H), ``head`` (V,
    H), in float32 or in a type that is widened tile by tile; ``temperature`` is one for all or per place, (M, 1).
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
    """Only the log-probabilities of ``token_scores``, for half the work."""
    cooled = _cooled(hidden, temperature, head)
    return _of_targets(cooled, head, source, targets, _normalisers(cooled, head, tile, None))


def token_scores_backward(grad: Tensor, tape: HeadTape, head: Tensor, temperature: float | Tensor) -> Tensor:
    """Gradient by the hidden states, (M, H), from that by the log-probabilities, (N,)."""
    share = grad / (temperature if isinstance(temperature, float) else temperature[tape.source, 0])
    total = share.new_zeros(len(tape.mean)).index_put_((tape.source,), share, accumulate=True)
    result = tape.mean * total.neg_()[:, None]
    chosen = head[tape.targets].float().mul_(share[:, None])
    return result.index_put_((tape.source,), chosen, accumulate=True)  # the same bits on a GPU, too, unlike index_add


def entropies_backward(
    grad: Tensor, tape: HeadTape, head: Tensor, temperature: float | Tensor, tile: Tile = CACHED
) -> Tensor:
    """Gradient by the hidden states, (M, H), from that by the entropies, (N,); computes the logits once more."""
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
    return head.dtype == torch.bfloat16 and head.device.type == "cpu"


def _logits(hidden: Tensor, entries: Tensor, room: Tensor | None = None) -> Tensor:
    if _in_bfloat16(entries):
        return widened_product(hidden, entries.T, room)
    return product(hidden, entries.float().T, room=room)


def _add_weighted(sums: Tensor, weights: Tensor, entries: Tensor) -> None:
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
    result: Tensor = torch.linalg.vecdot(left, right)
    return result


# One decoder block: attention and feed-forward part, each after an RMS norm, added to its input. If a block keeps only
# its input, its feed-forward part is computed some rows at a time, so its memory does not grow with the sequence.
# Qwen2, Qwen3 and Llama differ only in biases and in the norms of queries and keys.


@dataclass(frozen=True)
class PassLayout:
    """Positions, attention and spans of a pass: the same for all layers."""

    attention: Attention
    cosine: Tensor
    """(T, 1, D/2)"""
    sine: Tensor
    """(T, 1, D/2)"""
    needed: Tensor
    """(M,): places whose outputs are needed."""
    eps: float
    spans: Spans
    needed_spans: Spans


@dataclass(frozen=True)
class Normed:
    """Input of ``rms_norm_backward``."""

    unit: Tensor
    inverse: Tensor


@dataclass(frozen=True)
class AttendTape:
    """Tape of the attention part."""

    norm: Normed
    qkv: Applied
    head_norm: Normed | None
    attention: Any
    o: Applied


@dataclass(frozen=True)
class FeedTape:
    """Tape of the feed-forward part."""

    norm: Normed
    gate_up: Applied
    gates: Tensor
    """(T, 2 I)"""
    opened: Tensor | None
    """(T, I); None in bfloat16: there it is recomputed, since a pass of a large base often has no room to keep it."""
    down: Applied


@dataclass(frozen=True)
class LayerTape:
    """Tape of a block."""

    attend: AttendTape
    feed: FeedTape


def forward(layer: Layer[Linear], x: Tensor, place: PassLayout, last: bool) -> tuple[Tensor, LayerTape]:
    """(T, H) → (T, H); the ``last`` block gives only the needed places, (M, H)."""
    x, attend = _attend(layer, x, place, last)
    x, feed = _feed(layer, x, place.eps, _spans(place, last))
    return x, LayerTape(attend, feed)


def backward(layer: Layer[Linear], grad: Tensor, tape: LayerTape, place: PassLayout, last: bool) -> Tensor:
    """Add the gradients of the block's adapters; return that of its input, (T, H)."""
    grad = _feed_backward(layer, grad, tape.feed, _spans(place, last))
    return _attend_backward(layer, grad, tape.attend, place, last)


def forward_only(layer: Layer[Linear], x: Tensor, place: PassLayout, last: bool, rows: int) -> Tensor:
    """As ``forward``, keeping nothing, the feed-forward part of at most ``rows`` rows at a time."""
    x = _attend(layer, x, place, last)[0]
    return _joined([_feed(layer, x[part], place.eps, spans)[0] for part, spans in _parts(place, last, len(x), rows)])


def backward_again(layer: Layer[Linear], grad: Tensor, x: Tensor, place: PassLayout, last: bool, rows: int) -> Tensor:
    """As ``backward``, from the block's input ``x`` (T, H); the feed-forward part of ``rows`` rows at a time."""
    x, attend = _attend(layer, x, place, last)
    by_x = []
    for part, spans in _parts(place, last, len(x), rows):
        feed = _feed(layer, x[part], place.eps, spans)[1]
        by_x.append(_feed_backward(layer, grad[part], feed, spans))
        del feed
    return _attend_backward(layer, _joined(by_x), attend, place, last)


def _parts(place: PassLayout, last: bool, count: int, rows: int) -> Iterator[tuple[slice, Spans]]:
    spans = _spans(place, last)
    for begin in range(0, count, rows):
        part = slice(begin, min(begin + rows, count))
        yield part, tuple(slice(*(min(max(row, begin), part.stop) - begin for row in (s.start, s.stop))) for s in spans)


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _spans(place: PassLayout, last: bool) -> Spans:
    return place.needed_spans if last else place.spans


def _attend(layer: Layer[Linear], x: Tensor, place: PassLayout, last: bool) -> tuple[Tensor, AttendTape]:
    heads = place.attention.heads
    normed, *norm = rms_norm(x, layer.attention_norm, place.eps)
    qkv, qkv_applied = layer.qkv.forward(normed, place.spans)
    turned, head_norm = qkv[:, : heads.turned * heads.size].float(), None
    turned = torch.unflatten(turned, 1, (heads.turned, heads.size))
    if layer.head_norm is not None:
        turned, *head_norm = rms_norm(turned, layer.head_norm, place.eps)
    turned = rotate(turned, place.cosine, place.sine)  # (T, q and k heads, D)
    attended, attention_tape = place.attention.forward(turned, qkv[:, heads.turned * heads.size :].contiguous())
    if last:
        attended, x = attended[place.needed], x[place.needed]
    o, o_applied = layer.o.forward(attended, _spans(place, last))
    return x + o, AttendTape(
        Normed(*norm), qkv_applied, Normed(*head_norm) if head_norm else None, attention_tape, o_applied
    )


def _attend_backward(layer: Layer[Linear], grad: Tensor, tape: AttendTape, place: PassLayout, last: bool) -> Tensor:
    """The gradient of the input, (T, H), from that by the result of ``_attend``."""
    attended = layer.o.backward(grad, tape.o, _spans(place, last))
    if last:
        attended, grad = (_spread(part, place) for part in (attended, grad))
    turned, v = place.attention.backward(attended.contiguous(), tape.attention)
    turned = rotate(turned, place.cosine, -place.sine)
    if tape.head_norm is not None and layer.head_norm is not None:
        turned = rms_norm_backward(turned, tape.head_norm.unit, tape.head_norm.inverse, layer.head_norm)
    qkv = torch.cat([turned.flatten(1), v], 1)
    normed = layer.qkv.backward(qkv, tape.qkv, place.spans)
    return grad + rms_norm_backward(normed, tape.norm.unit, tape.norm.inverse, layer.attention_norm)


def _feed(layer: Layer[Linear], x: Tensor, eps: float, spans: Spans) -> tuple[Tensor, FeedTape]:
    normed, *norm = rms_norm(x, layer.mlp_norm, eps)
    gates, gates_applied = layer.gate_up.forward(normed, spans)
    product, opened = swiglu(gates)
    down, down_applied = layer.down.forward(product, spans)
    kept = opened if opened.dtype == torch.float32 else None
    return x + down, FeedTape(Normed(*norm), gates_applied, gates, kept, down_applied)


def _feed_backward(layer: Layer[Linear], grad: Tensor, tape: FeedTape, spans: Spans) -> Tensor:
    gates = swiglu_backward(layer.down.backward(grad, tape.down, spans), tape.gates, tape.opened)
    normed = layer.gate_up.backward(gates, tape.gate_up, spans)
    return grad + rms_norm_backward(normed, tape.norm.unit, tape.norm.inverse, layer.mlp_norm)


def _spread(needed: Tensor, place: PassLayout) -> Tensor:
    """(M, …) at the needed places of (T, …), zero elsewhere."""
    return needed.new_zeros(place.attention.places, needed.shape[1]).index_copy_(0, place.needed, needed)
