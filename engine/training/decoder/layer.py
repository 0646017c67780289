"""One decoder block, forward and backward: attention and feed-forward part, each after an RMS norm, added to its input.

Qwen2, Qwen3 and Llama differ only in biases and in the norms of queries and keys.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...base import Layer, rms_norm, rms_norm_backward, rotate, swiglu, swiglu_backward
from .attention import Attention
from .linear import Applied, Linear
from .spans import Spans


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
class LayerTape:
    """What the backward pass of a block needs."""

    attention_norm: Normed
    qkv: Applied
    head_norm: Normed | None
    attention: Any
    """The tape of the pass's ``Attention``."""
    o: Applied
    mlp_norm: Normed
    gate_up: Applied
    gates: Tensor
    """(T, 2 I)"""
    opened: Tensor | None
    """(T, I); None in bfloat16, where it is computed again: a pass of a large base that keeps it often has no room to
    keep anything, and then computes all of it again."""
    down: Applied


def forward(layer: Layer[Linear], x: Tensor, place: PassLayout, last: bool) -> tuple[Tensor, LayerTape]:
    """(T, H) → (T, H); the ``last`` block gives only the needed places, (M, H)."""
    heads = place.attention.heads
    normed, *attention_norm = rms_norm(x, layer.attention_norm, place.eps)
    qkv, qkv_applied = layer.qkv.forward(normed, place.spans)
    turned, head_norm = qkv[:, : heads.turned * heads.size].float(), None
    turned = torch.unflatten(turned, 1, (heads.turned, heads.size))
    if layer.head_norm is not None:
        turned, *head_norm = rms_norm(turned, layer.head_norm, place.eps)
    turned = rotate(turned, place.cosine, place.sine)  # (T, q and k heads, D)
    attended, attention_tape = place.attention.forward(turned, qkv[:, heads.turned * heads.size :].contiguous())
    spans = place.needed_spans if last else place.spans
    if last:
        attended, x = attended[place.needed], x[place.needed]
    o, o_applied = layer.o.forward(attended, spans)
    x = x + o

    mlp_input, *mlp_norm = rms_norm(x, layer.mlp_norm, place.eps)
    gates, gates_applied = layer.gate_up.forward(mlp_input, spans)
    product, opened = swiglu(gates)
    down, down_applied = layer.down.forward(product, spans)
    return x + down, LayerTape(
        attention_norm=Normed(*attention_norm),
        qkv=qkv_applied,
        head_norm=Normed(*head_norm) if head_norm else None,
        attention=attention_tape,
        o=o_applied,
        mlp_norm=Normed(*mlp_norm),
        gate_up=gates_applied,
        gates=gates,
        opened=opened if opened.dtype == torch.float32 else None,
        down=down_applied,
    )


def backward(layer: Layer[Linear], grad: Tensor, tape: LayerTape, place: PassLayout, last: bool) -> Tensor:
    """Add the gradients of the block's adapters; return that of its input, (T, H)."""
    spans = place.needed_spans if last else place.spans
    gates = swiglu_backward(layer.down.backward(grad, tape.down, spans), tape.gates, tape.opened)
    mlp_input = layer.gate_up.backward(gates, tape.gate_up, spans)
    grad = grad + rms_norm_backward(mlp_input, tape.mlp_norm.unit, tape.mlp_norm.inverse, layer.mlp_norm)

    attended = layer.o.backward(grad, tape.o, spans)
    if last:
        attended, grad = (_spread(part, place) for part in (attended, grad))
    turned, v = place.attention.backward(attended.contiguous(), tape.attention)
    turned = rotate(turned, place.cosine, -place.sine)
    if tape.head_norm is not None and layer.head_norm is not None:
        turned = rms_norm_backward(turned, tape.head_norm.unit, tape.head_norm.inverse, layer.head_norm)
    qkv = torch.cat([turned.flatten(1), v], 1)
    normed = layer.qkv.backward(qkv, tape.qkv, place.spans)
    return grad + rms_norm_backward(normed, tape.attention_norm.unit, tape.attention_norm.inverse, layer.attention_norm)


def _spread(needed: Tensor, place: PassLayout) -> Tensor:
    """(M, …) at the needed places of (T, …), zero elsewhere."""
    return needed.new_zeros(place.attention.places, needed.shape[1]).index_copy_(0, place.needed, needed)
