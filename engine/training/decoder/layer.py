"""One decoder block: attention and feed-forward part, each behind an RMS norm and added to its input; then backwards.

Reads as the architecture: Qwen2, Qwen3 and Llama differ in biases, in the norms of queries and keys, in nothing else.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .arithmetic import rms_norm, rms_norm_backward, rotate, swiglu, swiglu_backward
from .attention import AttentionPlan, AttentionTape, attention, attention_backward
from .linear import Linear


@dataclass(frozen=True)
class Layer:
    """The weights of one block, adapters merged in."""

    attention_norm: Tensor
    """(H,)"""
    qkv: Linear
    q_norm: Tensor | None
    """(D,): only Qwen3 normalises the heads of queries and keys."""
    k_norm: Tensor | None
    o: Linear
    mlp_norm: Tensor
    """(H,)"""
    gate_up: Linear
    down: Linear
    eps: float


@dataclass(frozen=True)
class Place:
    """Where the tokens of a pass stand: one for all layers."""

    plan: AttentionPlan
    cosine: Tensor
    """(T, 1, D/2)"""
    sine: Tensor
    """(T, 1, D/2)"""
    needed: Tensor
    """(M,): places whose outputs are needed."""


@dataclass(frozen=True)
class Normed:
    """What ``rms_norm_backward`` needs."""

    unit: Tensor
    inverse: Tensor


@dataclass(frozen=True)
class LayerTape:
    """What the backward pass of a block needs."""

    attention_norm: Normed
    attention_input: Tensor
    q_norm: Normed | None
    k_norm: Normed | None
    attention: AttentionTape
    attended: Tensor
    mlp_norm: Normed
    mlp_input: Tensor
    gate_up: Tensor
    opened: Tensor
    product: Tensor


def forward(layer: Layer, x: Tensor, place: Place, last: bool) -> tuple[Tensor, LayerTape]:
    """(T, H) → (T, H); the ``last`` block gives only the needed places, (M, H)."""
    heads = place.plan.heads
    attention_input, *attention_norm = rms_norm(x, layer.attention_norm, layer.eps)
    qkv = layer.qkv.forward(attention_input)
    q, k, v = torch.split(qkv, [heads.queries * heads.size, heads.keys * heads.size, heads.keys * heads.size], 1)
    q, q_norm = _head_norm(q, heads.queries, layer.q_norm, layer.eps)
    k, k_norm = _head_norm(k, heads.keys, layer.k_norm, layer.eps)
    q, k = rotate(q, place.cosine, place.sine), rotate(k, place.cosine, place.sine)
    attended, attention_tape = attention(q.flatten(1), k.flatten(1), v.contiguous(), place.plan)
    if last:
        attended, x = attended[place.needed], x[place.needed]
    x = layer.o.forward(attended).add_(x)

    mlp_input, *mlp_norm = rms_norm(x, layer.mlp_norm, layer.eps)
    gate_up = layer.gate_up.forward(mlp_input)
    product, opened = swiglu(gate_up)
    return layer.down.forward(product).add_(x), LayerTape(
        Normed(*attention_norm),
        attention_input,
        q_norm,
        k_norm,
        attention_tape,
        attended,
        Normed(*mlp_norm),
        mlp_input,
        gate_up,
        opened,
        product,
    )


def backward(layer: Layer, grad: Tensor, tape: LayerTape, place: Place, first: bool, last: bool) -> Tensor:
    """Add the gradients of the block's adapters; return that of its input, (T, H).

    Nothing asks for the gradient of the ``first`` block's input: what is returned there means nothing.
    """
    layer.down.by_adapter(grad, tape.product)
    gate_up = swiglu_backward(layer.down.by_input(grad), tape.gate_up, tape.opened)
    layer.gate_up.by_adapter(gate_up, tape.mlp_input)
    grad = grad + _norm_backward(layer.gate_up.by_input(gate_up), tape.mlp_norm, layer.mlp_norm)

    layer.o.by_adapter(grad, tape.attended)
    attended = layer.o.by_input(grad)
    if last:
        attended, grad = (_spread(part, place) for part in (attended, grad))
    q, k, v = attention_backward(attended, tape.attention, place.plan)
    q = _head_norm_backward(_turn_back(q, place), tape.q_norm, layer.q_norm)
    k = _head_norm_backward(_turn_back(k, place), tape.k_norm, layer.k_norm)
    qkv = torch.cat([q.flatten(1), k.flatten(1), v], 1)
    layer.qkv.by_adapter(qkv, tape.attention_input)
    if first:
        return grad
    return grad + _norm_backward(layer.qkv.by_input(qkv), tape.attention_norm, layer.attention_norm)


def _norm_backward(grad: Tensor, normed: Normed, weight: Tensor) -> Tensor:
    return rms_norm_backward(grad, normed.unit, normed.inverse, weight)


def _turn_back(grad: Tensor, place: Place) -> Tensor:
    """The backward of ``rotate`` for a table (T, heads · D), as (T, heads, D)."""
    return rotate(grad.view(len(grad), -1, place.plan.heads.size), place.cosine, -place.sine)


def _head_norm(x: Tensor, heads: int, weight: Tensor | None, eps: float) -> tuple[Tensor, Normed | None]:
    """(T, heads · D) → (T, heads, D), normalised where the architecture does."""
    x = torch.unflatten(x, 1, (heads, -1))
    if weight is None:
        return x, None
    result, *normed = rms_norm(x, weight, eps)
    return result, Normed(*normed)


def _head_norm_backward(grad: Tensor, normed: Normed | None, weight: Tensor | None) -> Tensor:
    return grad if normed is None or weight is None else _norm_backward(grad, normed, weight)


def _spread(needed: Tensor, place: Place) -> Tensor:
    """(M, …) at the needed places of (T, …), zero elsewhere."""
    return needed.new_zeros(place.plan.places, needed.shape[1]).index_copy_(0, place.needed, needed)
