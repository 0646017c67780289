"""A trainer's model that computes in turns with the sampler on its device.

Passes over the base go through the gate, one at a time; what costs nothing on the device does not. A pass takes tens to
hundreds of milliseconds, as long as the trainer's memory for it allows, and the sampler may have to wait for its end.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ...training import Batch, Criterion, Groups, Layout, Model, PolicyMemory
from .gate import Gate

B = TypeVar("B", bound=Batch)


class Paced(Generic[B]):
    """Implements ``training.model.Model`` over another model."""

    def __init__(self, model: Model[B], gate: Gate, device: str) -> None:
        self._model = model
        self._gate = gate
        self._queued = device != "cpu"
        """Whether the device is still at work on a pass when its call returns."""

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""
        return self._model.vocabulary

    @property
    def mixes(self) -> bool:
        """Whether several policies may be mounted at a time."""
        return self._model.mixes

    def layout(self, rank: int) -> Layout:
        """See the protocol."""
        return self._model.layout(rank)

    def mount(self, policies: Sequence[PolicyMemory]) -> None:
        """See the protocol."""
        self._model.mount(policies)

    def unmount(self) -> None:
        """See the protocol."""
        self._model.unmount()

    def batches(self, jobs: Sequence[Groups]) -> Iterator[B]:
        """See the protocol."""
        return self._model.batches(jobs)

    def shrink(self) -> bool:
        """See the protocol."""
        return self._model.shrink()

    def logprobs(self, batch: B, temperatures: tuple[float, ...], adapted: bool = True) -> Tensor:
        """See the protocol; in a turn of its own."""
        with self._gate.turn("trainer"):
            result = self._model.logprobs(batch, temperatures, adapted)
            self._finish()
        return result

    def differentiate(self, batch: B, temperatures: tuple[float, ...], criterion: Criterion) -> None:
        """See the protocol; in a turn of its own."""
        with self._gate.turn("trainer"):
            self._model.differentiate(batch, temperatures, criterion)
            self._finish()

    def _finish(self) -> None:
        """Wait for the device: the turn ends when the pass is computed, not when it is queued."""
        if self._queued:
            torch.cuda.current_stream().synchronize()
