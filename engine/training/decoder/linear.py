"""Linear layers under LoRA adapters (Hu et al., arXiv 2106.09685): y = x (W + s B A)ᵀ + b; the gradients of A and B.

The rows of a pass may belong to several policies, each a contiguous span of them: the base's weights are multiplied
with all rows in one product, each policy's thin matrices with its own span (mLoRA, arXiv 2312.02515). So a policy alone
and one among others are the same code, a switch between policies copies nothing but the matrices A, and what one
policy's rows hold, infinities included, never reaches another's. Layers that read the same input (q, k, v; gate, up)
are one.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from ...base.kernels import small_products
from ...base.tensors import Base, Layer, Stacked
from ..policy_memory import PolicyMemory

Spans = tuple[slice, ...]
"""The rows of each mounted policy, in their order; empty where it has none."""
Downs = tuple[Tensor, ...]
"""x Aᵀ of each span, (rows, ranks)."""


@dataclass(frozen=True)
class Part:
    """One adapted layer: some outputs of a fused one, and some columns of what its adapters see."""

    outputs: slice
    columns: slice
    b: Tensor
    """(outputs, r)"""
    grad_a: Tensor
    """(r, in): added to by every backward pass."""
    grad_b: Tensor
    """(outputs, r), likewise."""


@dataclass(frozen=True)
class Adapter:
    """One policy's matrices on layers with the same input."""

    scale: float
    a: Tensor
    """(ranks, in): the parts' A, one above the other."""
    parts: tuple[Part, ...]


@dataclass(frozen=True)
class Linear:
    """One or more layers with the same input, and the adapters of the mounted policies; none for the base alone."""

    weight: Tensor
    """(out, in)"""
    bias: Tensor | None
    """(out,)"""
    adapters: tuple[Adapter, ...] = ()

    def forward(self, x: Tensor, spans: Spans) -> tuple[Tensor, Downs]:
        """(T, in) → (T, out), and what ``backward`` needs besides x."""
        y, downs = self.of_base(x), []
        with small_products():
            for adapter, span in zip(self.adapters, spans, strict=False):
                down = torch.mm(x[span], adapter.a.T)
                for part in adapter.parts:
                    y[span, part.outputs].addmm_(down[:, part.columns], part.b.T, alpha=adapter.scale)
                downs.append(down)
        return y, tuple(downs)

    def of_base(self, x: Tensor) -> Tensor:
        """(T, in) → (T, out) without adapters."""
        y = torch.mm(x, self.weight.T)
        return y if self.bias is None else y.add_(self.bias)

    def backward(self, grad: Tensor, x: Tensor, downs: Downs, spans: Spans) -> Tensor:
        """Add the gradients of A and B; return that by the input, (T, in), from that by the output, (T, out).

        dx = grad (W + s B A), dB = s · gradᵀ (x Aᵀ) and dA = s · (grad B)ᵀ x.
        """
        by_x = torch.mm(grad, self.weight)
        with small_products():
            for adapter, span, down in zip(self.adapters, spans, downs, strict=False):
                if span.start < span.stop:
                    _backward(adapter, grad[span], x[span], down, by_x[span])
        return by_x


def _backward(adapter: Adapter, grad: Tensor, x: Tensor, down: Tensor, by_x: Tensor) -> None:
    by_down = torch.empty_like(down)  # grad B
    for part in adapter.parts:
        torch.mm(grad[:, part.outputs], part.b, out=by_down[:, part.columns])
        part.grad_b.addmm_(grad[:, part.outputs].T, down[:, part.columns], alpha=adapter.scale)
    by_a = torch.mm(by_down.T, x)  # (ranks, in)
    for part in adapter.parts:
        part.grad_a.add_(by_a[part.columns], alpha=adapter.scale)
    by_x.addmm_(by_down, adapter.a, alpha=adapter.scale)


def adapted(base: Base, policies: Sequence[PolicyMemory] = ()) -> tuple[Layer[Linear], ...]:
    """The base's layers with these policies' adapters; to be made again when their weights have changed.

    Backward passes add to the policies' gradients.
    """
    views = [
        (policy.scale, policy.layout.views(policy.optimised.weights), policy.layout.views(policy.gradient))
        for policy in policies
    ]

    def over(stacked: Stacked) -> Linear:
        adapters = tuple(_adapter(stacked, *view) for view in views)
        return Linear(stacked.weight, stacked.bias, adapters)

    return tuple(layer.map(over) for layer in base.layers)


def _adapter(stacked: Stacked, scale: float, weights: dict[str, Tensor], gradients: dict[str, Tensor]) -> Adapter:
    a = torch.cat([weights[f"{module}.lora_A"] for module in stacked.modules])
    return Adapter(scale, a, tuple(_parts(stacked, weights, gradients)))


def _parts(stacked: Stacked, weights: dict[str, Tensor], gradients: dict[str, Tensor]) -> Iterator[Part]:
    output = column = 0
    for module, count in zip(stacked.modules, stacked.outputs, strict=True):
        b, grad_a, grad_b = weights[f"{module}.lora_B"], gradients[f"{module}.lora_A"], gradients[f"{module}.lora_B"]
        rank = b.shape[1]
        yield Part(slice(output, output + count), slice(column, column + rank), b, grad_a, grad_b)
        output, column = output + count, column + rank
