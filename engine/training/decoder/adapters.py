"""The adapters of the mounted policies on layers with one input, policy by policy: each on its own span of the rows.

The products are thin: in float32, or in bfloat16 where those with the base write it. One policy and several use the
same code, and values in one policy's rows, infinities included, never reach another's. In float32 a switch between
policies copies only the matrices A. On a processor this is fastest; for cards, where each product is a kernel launch,
see ``grouped``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from ...base import add_bfloat16_product
from ..memory.policy_memory import PolicyMemory
from .spans import Spans

Downs = tuple[Tensor, ...]
"""x Aᵀ, (rows, ranks): one for each span, or one for all rows."""


class Adapters(Protocol):
    """The adapters of one linear layer, or of several with the same input."""

    def add(self, y: Tensor, x: Tensor, spans: Spans) -> Downs:
        """Add s x Aᵀ Bᵀ to ``y`` (T, out) for ``x`` (T, in); return what ``backward`` needs besides x."""

    def backward(self, grad: Tensor, x: Tensor, downs: Downs, by_x: Tensor, spans: Spans) -> None:
        """Add the gradients of A and B to the policies', and that of the input to ``by_x`` (T, in).

        ``grad`` is (T, out), of the type of ``by_x``. dx = s grad B A, dB = s · gradᵀ (x Aᵀ) and dA = s · (grad B)ᵀ x.
        """


@dataclass(frozen=True)
class LayerAdapter:
    """The adapter of one layer: its outputs among those of a fused layer, and its columns of x Aᵀ."""

    outputs: slice
    columns: slice
    b: Tensor
    """(outputs, r)"""
    grad_a: Tensor
    """(r, in): every backward pass adds to it."""
    grad_b: Tensor
    """(outputs, r): likewise."""


@dataclass(frozen=True)
class Adapter:
    """One policy's matrices on layers with the same input."""

    scale: float
    a: Tensor
    """(ranks, in): the parts' A, stacked."""
    parts: tuple[LayerAdapter, ...]


@dataclass(frozen=True)
class Separate:
    """Implements ``Adapters`` with products for one policy at a time, in the type of its matrices, that of y and dx."""

    policies: tuple[Adapter, ...]

    def add(self, y: Tensor, x: Tensor, spans: Spans) -> Downs:
        """See ``Adapters``."""
        downs = []
        for adapter, span in zip(self.policies, spans.rows, strict=True):
            down = torch.mm(x[span].to(adapter.a.dtype), adapter.a.T)
            for part in adapter.parts:
                y[span, part.outputs].addmm_(down[:, part.columns], part.b.T, alpha=adapter.scale)
            downs.append(down)
        return tuple(downs)

    def backward(self, grad: Tensor, x: Tensor, downs: Downs, by_x: Tensor, spans: Spans) -> None:
        """See ``Adapters``."""
        for adapter, span, down in zip(self.policies, spans.rows, downs, strict=True):
            if span.start < span.stop:
                _backward(adapter, grad[span], x[span].to(adapter.a.dtype), down, by_x[span])


def _backward(adapter: Adapter, grad: Tensor, x: Tensor, down: Tensor, by_x: Tensor) -> None:
    by_down = torch.empty_like(down)  # grad B
    for part in adapter.parts:
        torch.mm(grad[:, part.outputs], part.b, out=by_down[:, part.columns])
        _add_product(part.grad_b, grad[:, part.outputs].T, down[:, part.columns], adapter.scale)
    by_a = torch.mm(by_down.T, x)  # (ranks, in)
    for part in adapter.parts:
        part.grad_a.add_(by_a[part.columns], alpha=adapter.scale)
    by_x.addmm_(by_down, adapter.a, alpha=adapter.scale)


def _add_product(sums: Tensor, left: Tensor, right: Tensor, scale: float) -> None:
    """Add ``scale`` times a product to float32 ``sums``."""
    if left.dtype == sums.dtype:
        sums.addmm_(left, right, alpha=scale)
    else:
        add_bfloat16_product(sums, left, right, scale)


@dataclass(frozen=True)
class Views:
    """A policy's weights and gradient as matrices by name, which are views of its vectors."""

    scale: float
    weights: dict[str, Tensor]
    gradients: dict[str, Tensor]

    @classmethod
    def of(cls, policy: PolicyMemory) -> Views:
        """The views of a policy; backward passes add to its gradient through them."""
        layout = policy.layout
        return cls(policy.scale, layout.views(policy.optimised.weights), layout.views(policy.gradient))


def separate(
    modules: Sequence[str], outputs: Sequence[int], policies: Sequence[Views], dtype: torch.dtype = torch.float32
) -> Separate:
    """The policies' adapters on these layers, in ``dtype``; to be made again when their weights have changed."""
    return Separate(tuple(_adapter(modules, outputs, views, dtype) for views in policies))


def _adapter(modules: Sequence[str], outputs: Sequence[int], views: Views, dtype: torch.dtype) -> Adapter:
    a = torch.cat([views.weights[f"{module}.lora_A"] for module in modules]).to(dtype)
    return Adapter(views.scale, a, tuple(_parts(modules, outputs, views, dtype)))


def _parts(modules: Sequence[str], outputs: Sequence[int], views: Views, dtype: torch.dtype) -> Iterator[LayerAdapter]:
    output = column = 0
    for module, count in zip(modules, outputs, strict=True):
        b, grad_a, grad_b = (
            views.weights[f"{module}.lora_B"],
            views.gradients[f"{module}.lora_A"],
            views.gradients[f"{module}.lora_B"],
        )
        rank = b.shape[1]
        yield LayerAdapter(slice(output, output + count), slice(column, column + rank), b.to(dtype), grad_a, grad_b)
        output, column = output + count, column + rank
