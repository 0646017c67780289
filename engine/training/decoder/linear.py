"""Linear layers under LoRA adapters (Hu et al., arXiv 2106.09685): y = x (W + s B A)ᵀ + b; the gradients of A and B.

The sum in brackets is computed once per step (``merged``), so the adapters cost next to nothing: one product gives the
output and x Aᵀ, another the gradient by the input and that by x Aᵀ, and only the gradients of A and B come on top.
Layers that read the same input (q, k, v; gate, up) are one.
"""

from __future__ import annotations

from dataclasses import dataclass

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


@dataclass(frozen=True)
class Linear:
    """One or more layers with the same input, their adapters merged in."""

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
        """(T, in) → (T, out), and x Aᵀ (T, ranks) for ``by_adapter``; both views of one tensor."""
        both = torch.mm(x, self.extended[:, : self.inputs].T)
        y = both[:, : self.outputs]
        if self.bias is not None:
            y.add_(self.bias)
        return y, both[:, self.outputs :]

    def backward(self, grad: Tensor, x: Tensor, down: Tensor) -> Tensor:
        """Add the gradients of A and B; return that by the input, (T, in), from that by the output, (T, out).

        dx = grad (W + s B A), dB = s · gradᵀ (x Aᵀ) and dA = s · (grad B)ᵀ x.
        """
        both = torch.mm(grad, self.extended[: self.outputs])  # (T, in + ranks)
        by_a = torch.mm(both[:, self.inputs :].T, x)  # (ranks, in)
        for part in self.parts:
            part.grad_a.add_(by_a[part.columns], alpha=self.scale)
            part.grad_b.addmm_(grad[:, part.rows].T, down[:, part.columns], alpha=self.scale)
        return both[:, : self.inputs]
