"""Linear layers under LoRA adapters (Hu et al., arXiv 2106.09685): y = x (W + s B A)ᵀ + b; the gradients of A and B.

The sum in brackets is computed once per step (``merged``), so the forward pass costs no more than the base's; only the
backward pass sees A and B. Layers that read the same input (q, k, v; gate, up) are one product.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Part:
    """One adapted layer: rows ``start:stop`` of a fused one."""

    start: int
    stop: int
    b: Tensor
    """(stop - start, r)"""
    grad_a: Tensor
    """(r, in): added to by every backward pass."""
    grad_b: Tensor
    """(stop - start, r), likewise."""


@dataclass(frozen=True)
class Linear:
    """One or more layers with the same input, their adapters merged in."""

    weight: Tensor
    """(out, in): W + s B A."""
    bias: Tensor | None
    """(out,)"""
    a: Tensor
    """(parts · r, in): the parts' A one above the other; empty where there is no adapter."""
    scale: float
    parts: tuple[Part, ...]

    def forward(self, x: Tensor) -> Tensor:
        """(T, in) → (T, out)"""
        if self.bias is None:
            return torch.mm(x, self.weight.T)
        return torch.addmm(self.bias, x, self.weight.T)

    def by_input(self, grad: Tensor) -> Tensor:
        """Gradient by the input, (T, in), from that by the output, (T, out)."""
        return torch.mm(grad, self.weight)

    def by_adapter(self, grad: Tensor, x: Tensor) -> None:
        """Add the gradients of A and B for ``grad`` (T, out) at input ``x`` (T, in).

        dB = s · gradᵀ (x Aᵀ) and dA = s · (grad B)ᵀ x.
        """
        down = torch.mm(x, self.a.T)  # (T, parts · r)
        up = torch.empty_like(down)
        rank = down.shape[1] // len(self.parts)
        for number, part in enumerate(self.parts):
            mine, columns = grad[:, part.start : part.stop], slice(number * rank, (number + 1) * rank)
            part.grad_b.addmm_(mine.T, down[:, columns], alpha=self.scale)
            torch.mm(mine, part.b, out=up[:, columns])
        by_a = torch.mm(up.T, x)  # (parts · r, in)
        for number, part in enumerate(self.parts):
            part.grad_a.add_(by_a[number * rank : (number + 1) * rank], alpha=self.scale)
