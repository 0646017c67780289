"""The base's weights as a pass multiplies with them, one ``Block`` for each layer.

Matrices are stored (in, out), the order in which
libraries read them fastest where rows are few; adapters are added beside them (``mixing``).
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count

from torch import Tensor

from ...base import Base, Layer, Stacked, product
from .mixing import Mix


@dataclass(frozen=True)
class Linear:
    """y = x Wᵀ + b, and what each row's adapter adds."""

    number: int
    """Its index among all fused layers of the base."""
    weight: Tensor
    """Wᵀ, (in, out)"""
    bias: Tensor | None
    """(out,)"""

    def __call__(self, x: Tensor, mix: Mix | None) -> Tensor:
        """(n, in) → (n, out)"""
        y = product(x, self.weight, self.bias)
        if mix is not None:
            mix.add(self.number, x, y)
        return y


Block = Layer[Linear]
"""One decoder layer."""


def blocks(base: Base) -> tuple[Block, ...]:
    """All layers; their linear ones are numbered in the order in which the model applies them."""
    numbers = count()

    def linear(stacked: Stacked) -> Linear:
        return Linear(next(numbers), stacked.weight.T.contiguous(), stacked.bias)

    return tuple(layer.map(linear) for layer in base.layers)
