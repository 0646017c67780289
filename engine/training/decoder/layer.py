"""One decoder block, forward and backward: attention and feed-forward part, each after an RMS norm, added to its input.

Where a block keeps its input alone, its feed-forward part, which is the widest, is computed some rows at a time, in the
backward pass, too: so a long sequence needs as much memory for it as a short one.

Qwen2, Qwen3 and Llama differ only in biases and in the norms of queries and keys.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...base import Layer, rms_norm, rms_norm_backward, rotate, swiglu, swiglu_backward
from .attention import Attention
from .linear import Applied, Linear
from .packing import Spans


@dataclass(frozen=True)
class PassLayout:
    """Positions, attention and spans of a pass, which are the same for all layers."""

    attention: Attention
    cosine: Tensor
    """(T, 1, D/2)"""
    sine: Tensor
    """(T, 1, D/2)"""
    needed: Tensor
    """(M,): places whose outputs are needed."""
    eps: float
    """Epsilon of the norms."""
    spans: Spans
    """Spans of the policies among the T places."""
    needed_spans: Spans
    """Their spans among the M needed places."""


@dataclass(frozen=True)
class Normed:
    """What ``rms_norm_backward`` needs."""

    unit: Tensor
    inverse: Tensor


@dataclass(frozen=True)
class AttendTape:
    """What the backward pass of the attention part needs."""

    norm: Normed
    qkv: Applied
    head_norm: Normed | None
    attention: Any
    """The tape of the pass's ``Attention``."""
    o: Applied


@dataclass(frozen=True)
class FeedTape:
    """What the backward pass of the feed-forward part needs."""

    norm: Normed
    gate_up: Applied
    gates: Tensor
    """(T, 2 I)"""
    opened: Tensor | None
    """(T, I); None in bfloat16, where it is computed again: a pass of a large base that keeps it often has no room to
    keep anything, and then computes all of it again."""
    down: Applied


@dataclass(frozen=True)
class LayerTape:
    """What the backward pass of a block needs."""

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
        del feed  # else two tapes would be held while the next part is computed
    return _attend_backward(layer, _joined(by_x), attend, place, last)


def _parts(place: PassLayout, last: bool, count: int, rows: int) -> Iterator[tuple[slice, Spans]]:
    """The rows of a block's results in parts, with the policies' spans in each."""
    spans = _spans(place, last)
    for begin in range(0, count, rows):
        part = slice(begin, min(begin + rows, count))
        yield part, spans if count <= rows else spans.within(part)


def _joined(parts: list[Tensor]) -> Tensor:
    """The parts one below the other."""
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _spans(place: PassLayout, last: bool) -> Spans:
    """The policies' spans among the rows of a block's results."""
    return place.needed_spans if last else place.spans


def _attend(layer: Layer[Linear], x: Tensor, place: PassLayout, last: bool) -> tuple[Tensor, AttendTape]:
    """The attention part, added to its input."""
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
    """The gradient of the input, (T, H), from that by what ``_attend`` returns."""
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
    """The feed-forward part, added to its input."""
    normed, *norm = rms_norm(x, layer.mlp_norm, eps)
    gates, gates_applied = layer.gate_up.forward(normed, spans)
    product, opened = swiglu(gates)
    down, down_applied = layer.down.forward(product, spans)
    kept = opened if opened.dtype == torch.float32 else None
    return x + down, FeedTape(Normed(*norm), gates_applied, gates, kept, down_applied)


def _feed_backward(layer: Layer[Linear], grad: Tensor, tape: FeedTape, spans: Spans) -> Tensor:
    """The gradient of the input from that by what ``_feed`` returns."""
    gates = swiglu_backward(layer.down.backward(grad, tape.down, spans), tape.gates, tape.opened)
    normed = layer.gate_up.backward(gates, tape.gate_up, spans)
    return grad + rms_norm_backward(normed, tape.norm.unit, tape.norm.inverse, layer.mlp_norm)


def _spread(needed: Tensor, place: PassLayout) -> Tensor:
    """(M, …) at the needed places of (T, …), zero elsewhere."""
    return needed.new_zeros(place.attention.places, needed.shape[1]).index_copy_(0, place.needed, needed)
