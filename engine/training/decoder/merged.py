"""Base and adapter in one: what a pass multiplies with while a policy's weights stand still.

A base, and a policy's matrices with their gradients, flow in; layers flow out. W + s B A is computed once per step and
policy in memory that all policies share, so that a pass over a policy costs what one over the base does.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import torch
from torch import Tensor

from ...base.tensors import Base, Layer, Stacked
from .linear import Linear, MergedLinear, Part


class MergedWeights:
    """Room for one policy's merged weights beside the base's own."""

    def __init__(self, base: Base) -> None:
        self._base = base
        self._room: dict[str, Tensor] = {}
        """By the first module of each stack; made when first needed."""

    def mount(
        self, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], scale: float
    ) -> tuple[Layer[Linear], ...]:
        """Layers of the policy whose matrices (by layout name) these are; valid until the next call.

        Backward passes add to ``gradients``.
        """
        adapted = partial(self._adapted, weights=weights, gradients=gradients, scale=scale)
        return tuple(layer.map(adapted) for layer in self._base.layers)

    def _adapted(
        self, stacked: Stacked, weights: Mapping[str, Tensor], gradients: Mapping[str, Tensor], scale: float
    ) -> Linear:
        outputs, inputs = stacked.weight.shape
        ranks = sum(len(weights[f"{module}.lora_A"]) for module in stacked.modules)
        extended = self._extended(stacked, ranks)
        parts, row, column = [], 0, 0
        for module, count in zip(stacked.modules, stacked.outputs, strict=True):
            a, b = weights[f"{module}.lora_A"], weights[f"{module}.lora_B"]
            rows, columns = slice(row, row + count), slice(column, column + len(a))
            torch.addmm(stacked.weight[rows], b, a, alpha=scale, out=extended[rows, :inputs])
            extended[rows, inputs:][:, columns] = b
            extended[outputs:, :inputs][columns] = a
            parts.append(Part(rows, columns, gradients[f"{module}.lora_A"], gradients[f"{module}.lora_B"]))
            row, column = rows.stop, columns.stop
        return MergedLinear(extended, outputs, inputs, stacked.bias, scale, tuple(parts))

    def _extended(self, stacked: Stacked, ranks: int) -> Tensor:
        """Room for this stack's matrices; what is not written in it stays zero."""
        room, (outputs, inputs) = self._room.get(stacked.modules[0]), stacked.weight.shape
        if room is None or len(room) != outputs + ranks:
            room = self._room[stacked.modules[0]] = stacked.weight.new_zeros(outputs + ranks, inputs + ranks)
        return room


def plain(base: Base) -> tuple[Layer[Linear], ...]:
    """The base without an adapter, for forward passes."""
    return tuple(layer.map(_unadapted) for layer in base.layers)


def _unadapted(stacked: Stacked) -> Linear:
    outputs, inputs = stacked.weight.shape
    return MergedLinear(stacked.weight, outputs, inputs, stacked.bias, 0.0, ())
