"""Linear layers under LoRA adapters (Hu et al., arXiv 2106.09685): y = x (W + s B A)ᵀ + b; the gradients of A and B.

Two forms of the same arithmetic. Merged, the sum in brackets is computed once per step (``merged``), so the adapters
cost next to nothing: one product gives the output and x Aᵀ, another the gradient by the input and that by x Aᵀ, and
only the gradients of A and B come on top. Split, the base's own weights are multiplied with and thin products are added
(``split``): some 5 % slower at rank 16 and 900 inputs, and no second copy of the layers.
Layers that read the same input (q, k, v; gate, up) are one.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """One adapted layer: some rows of a fused one, and some columns of what its adapters see."""

    rows: slice
    columns: slice
    grad_a: Tensor
    """(r, in): added to by every backward pass."""
    grad_b: Tensor
    """(rows, r), likewise."""


class Linear(Protocol):
    """One or more layers with the same input, with the adapters of one policy or none."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(T, in) → (T, out), and x Aᵀ (T, ranks) for ``backward``."""

    def backward(self, grad: Tensor, x: Tensor, down: Tensor) -> Tensor:
        """Add the gradients of A and B; return that by the input, (T, in), from that by the output, (T, out).

        dx = grad (W + s B A), dB = s · gradᵀ (x Aᵀ) and dA = s · (grad B)ᵀ x.
        """


@dataclass(frozen=True)
class MergedLinear:
    """``Linear`` with the adapters merged in."""

    extended: Tensor
    """(out + ranks, in + ranks): above W + s B A and the parts' B side by side on a diagonal, below their A."""
    outputs: int
    inputs: int
    bias: Tensor | None
    """(out,)"""
    scale: float
    parts: tuple[Part, ...]
    """None for the base alone, whose ``ranks`` are 0."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See the protocol; both results are views of one tensor."""
        both = torch.mm(x, self.extended[:, : self.inputs].T)
        y = both[:, : self.outputs]
        if self.bias is not None:
            y.add_(self.bias)
        return y, both[:, self.outputs :]

    def backward(self, grad: Tensor, x: Tensor, down: Tensor) -> Tensor:
        """See the protocol."""
        both = torch.mm(grad, self.extended[: self.outputs])  # (T, in + ranks)
        _add_gradients(self.parts, self.scale, grad, x, down, both[:, self.inputs :])
        return both[:, : self.inputs]


@dataclass(frozen=True)
class SplitLinear:
    """``Linear`` with the adapters beside the base's weights."""

    weight: Tensor
    """(out, in)"""
    bias: Tensor | None
    """(out,)"""
    scale: float
    parts: tuple[Part, ...]
    a: Tensor
    """(ranks, in): the parts' A, one above the other."""
    b: tuple[Tensor, ...]
    """(rows, r) of each part."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """See the protocol."""
        y, down = torch.mm(x, self.weight.T), torch.mm(x, self.a.T)
        if self.bias is not None:
            y.add_(self.bias)
        for part, b in zip(self.parts, self.b, strict=True):
            y[:, part.rows].addmm_(down[:, part.columns], b.T, alpha=self.scale)
        return y, down

    def backward(self, grad: Tensor, x: Tensor, down: Tensor) -> Tensor:
        """See the protocol."""
        by_down = torch.empty_like(down)
        for part, b in zip(self.parts, self.b, strict=True):
            torch.mm(grad[:, part.rows], b, out=by_down[:, part.columns])
        _add_gradients(self.parts, self.scale, grad, x, down, by_down)
        return torch.mm(grad, self.weight).addmm_(by_down, self.a, alpha=self.scale)


def _add_gradients(parts: Iterable[Part], scale: float, grad: Tensor, x: Tensor, down: Tensor, by_down: Tensor) -> None:
    """``by_down`` is grad B, (T, ranks)."""
    by_a = torch.mm(by_down.T, x)  # (ranks, in)
    for part in parts:
        part.grad_a.add_(by_a[part.columns], alpha=scale)
        part.grad_b.addmm_(grad[:, part.rows].T, down[:, part.columns], alpha=scale)
