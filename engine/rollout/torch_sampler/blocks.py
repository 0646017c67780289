"""The weights that a pass multiplies with, a policy's adapter merged in.

The base's tensors and an adapter as numpy arrays flow in; one ``Block`` for each layer flows out. A version's blocks
are its own copy of the base's matrices, which is what a small base can afford and a large one cannot.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...base.tensors import Base, Layer, Stacked
from ..batching.context import Arrays


@dataclass(frozen=True)
class Linear:
    """y = x Wᵀ + b"""

    weight: Tensor
    """(out, in)"""
    bias: Tensor | None
    """(out,)"""

    def __call__(self, x: Tensor) -> Tensor:
        """(n, in) → (n, out)"""
        return torch.nn.functional.linear(x, self.weight, self.bias)


Block = Layer[Linear]
"""One decoder layer."""


def plain(base: Base) -> tuple[Block, ...]:
    """The base without an adapter: its own tensors, not copies."""
    return tuple(layer.map(lambda stacked: Linear(stacked.weight, stacked.bias)) for layer in base.layers)


def merged(base: Base, adapter: Arrays, alpha: float) -> tuple[Block, ...]:
    """The base with W + (alpha / r) B A for every layer that the adapter has matrices for."""

    def linear(stacked: Stacked) -> Linear:
        weight, row = stacked.weight.clone(), 0
        for module, outputs in zip(stacked.modules, stacked.outputs, strict=True):
            if f"{module}.lora_A" in adapter:
                a, b = (torch.from_numpy(adapter[f"{module}.lora_{half}"]).to(weight) for half in "AB")
                weight[row : row + outputs].addmm_(b, a, alpha=alpha / len(a))
            row += outputs
        return Linear(weight, stacked.bias)

    return tuple(layer.map(linear) for layer in base.layers)
