"""The indices of a packed batch on the device that computes it, transferred in one copy.

They are views of one tensor, because a copy to a card costs some microseconds whatever its size. From pinned memory,
the program need not wait for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..tokens import Ints
from .packing import PackedBatch


@dataclass(frozen=True)
class Places:
    """The arrays of a ``PackedBatch`` as int64 tensors."""

    tokens: Tensor
    """(T,)"""
    positions: Tensor
    """(T,)"""
    prefixes: Tensor
    """(F, P)"""
    prefix_lengths: Tensor
    """(F,)"""
    rows: Tensor
    """(F, G, L)"""
    needed: Tensor
    """(M,)"""
    source: Tensor
    """(N,)"""
    targets: Tensor
    """(N,)"""
    stops: Tensor
    """(policies,): where the span of each policy ends."""
    needed_stops: Tensor
    """(policies,): likewise among the needed places."""

    @classmethod
    def of(cls, batch: PackedBatch, device: torch.device) -> Places:
        """Bring a batch to a device."""
        return cls(
            *uploaded(
                (
                    batch.tokens,
                    batch.positions,
                    batch.prefixes,
                    batch.prefix_lengths,
                    batch.rows,
                    batch.needed,
                    batch.source,
                    batch.targets,
                    _stops(batch.spans),
                    _stops(batch.needed_spans),
                ),
                device,
            )
        )

    @property
    def count(self) -> int:
        """T"""
        return len(self.tokens)

    @property
    def padding(self) -> int:
        """The place that padding points to."""
        return self.count - 1

    @property
    def device(self) -> torch.device:
        """The device that they are on."""
        return self.tokens.device


def _stops(spans: Sequence[slice]) -> Ints:
    return np.array([span.stop for span in spans], dtype=np.int64)


def uploaded(arrays: Sequence[Ints], device: torch.device) -> list[Tensor]:
    """The arrays on ``device``, in their shapes."""
    if device.type == "cpu":
        return [torch.from_numpy(array) for array in arrays]
    together = torch.from_numpy(np.concatenate([array.reshape(-1) for array in arrays]))
    if device.type == "cuda":
        together = together.pin_memory()
    parts = torch.split(together.to(device, non_blocking=True), [array.size for array in arrays])
    return [part.view(array.shape) for part, array in zip(parts, arrays, strict=True)]
