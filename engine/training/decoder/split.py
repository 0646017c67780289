"""Base and adapter side by side: what a pass multiplies with where a second copy of the layers would be too large.

A base, and a policy's matrices with their gradients, flow in; layers flow out, which read the base's own weights. Only
the small matrices A are copied, so that the layers that share an input see them as one.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from ...base.tensors import Base, Layer, Stacked
from .linear import Linear, Part, SplitLinear


class SplitWeights:
    """The same service as ``merged.MergedWeights``, without memory of its own."""

    def __init__(self, base: Base) -> None:
        self._base = base

    def mount(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], scale: float
    ) -> tuple[Layer[Linear], ...]:
        """Layers of the policy whose matrices (by layout name) these are; to be called again when they have changed.

        Backward passes add to ``gradients``.
        """

        def adapted(stacked: Stacked) -> Linear:
            a = [weights[f"{module}.lora_A"] for module in stacked.modules]
            b = tuple(weights[f"{module}.lora_B"] for module in stacked.modules)
            parts, row, column = [], 0, 0
            for module, outputs, own in zip(stacked.modules, stacked.outputs, a, strict=True):
                rows, columns = slice(row, row + outputs), slice(column, column + len(own))
                parts.append(Part(rows, columns, gradients[f"{module}.lora_A"], gradients[f"{module}.lora_B"]))
                row, column = rows.stop, columns.stop
            return SplitLinear(stacked.weight, stacked.bias, scale, tuple(parts), torch.cat(a), b)

        return tuple(layer.map(adapted) for layer in self._base.layers)
