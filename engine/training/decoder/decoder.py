"""The Qwen and Llama families with adapters, by this package's own forward and backward pass. See ``..model``.

Groups are packed, the mounted policy is merged into a copy of the base's layers or, where those are large, multiplied
beside them, and gradients are added to its vector directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ...base.model import BaseModel
from ...base.tensors import Base, load
from ..bank import PolicyMemory
from ..layout import Layout
from ..model import Criterion
from ..protocol import TrainGroup
from .merged import MergedWeights, plain
from .packing import PackedBatch, packed_batches
from .passes import Keep, logprobs, run, run_backward
from .split import SplitWeights

PASS_BYTES = 1 << 30
"""Memory for what a pass keeps for its way back."""
MOST_MERGED = 256 << 20
"""Bytes of layers up to which a second copy is kept, with the mounted policy merged in."""
LEAST_TOKENS, MOST_TOKENS = 512, 4096
"""A batch may always hold the first number, and gains nothing beyond the second."""


class Decoder:
    """Implements ``model.Model`` on any torch ``device``. Raises ``BaseModelError`` where the folder cannot be read."""

    def __init__(self, base: BaseModel, device: str = "cpu") -> None:
        self._base = load(base, torch.device(device))
        large = layer_bytes(self._base) > MOST_MERGED
        self._weights = SplitWeights(self._base) if large else MergedWeights(self._base)
        self._plain = plain(self._base)
        self._layers = self._plain
        self._mounted: object = None
        self._room = PASS_BYTES
        self._all, self._inputs = tape_bytes(self._base)
        self._max_tokens = min(max(LEAST_TOKENS, self._room // self._inputs), MOST_TOKENS)

    @property
    def vocabulary(self) -> int:
        """Number of token ids, V."""
        return len(self._base.embedding)

    def layout(self, rank: int) -> Layout:
        """Where an adapter of this rank keeps its matrices."""
        return Layout.of(self._base.modules, rank)

    def mount(self, memory: PolicyMemory) -> None:
        """Bring this policy's weights to the base's, unless that has been done since they last changed."""
        if self._mounted is memory.optimised:
            return
        weights, gradients = memory.layout.views(memory.optimised.weights), memory.layout.views(memory.gradient)
        self._layers = self._weights.mount(weights, gradients, memory.scale)
        self._mounted = memory.optimised

    def unmount(self) -> None:
        """Forget which policy is mounted."""
        self._mounted, self._layers = None, self._plain

    def batches(self, groups: Iterable[TrainGroup]) -> Iterator[PackedBatch]:
        """Everything that has trained tokens, in order and within the memory that a pass may take."""
        return packed_batches(groups, self._max_tokens)

    @torch.no_grad()
    def logprobs(self, batch: PackedBatch, temperature: float, adapted: bool = True) -> Tensor:
        """Of the trained tokens, (N,); of the base alone unless ``adapted``."""
        layers = self._layers if adapted else self._plain
        return logprobs(self._base, layers, batch, temperature)

    @torch.no_grad()
    def differentiate(self, batch: PackedBatch, temperature: float, criterion: Criterion) -> None:
        """Run forward, ask ``criterion``, run backward: adds to the mounted policy's gradient."""
        keep = Keep.ALL if len(batch.tokens) * self._all <= self._room else Keep.INPUTS
        logp, entropy, tape = run(self._base, self._layers, batch, temperature, keep)
        run_backward(self._base, self._layers, tape, criterion(logp, entropy), temperature)


def layer_bytes(base: Base) -> int:
    """What the layers that adapters sit on take."""
    return sum(stacked.weight.nbytes for layer in base.layers for stacked in layer.linears)


def tape_bytes(base: Base) -> tuple[int, int]:
    """Roughly what a pass keeps for each token: with all that layers computed, and with their inputs alone."""
    layer = 4 * sum(stacked.weight.shape[0] + 2 * stacked.weight.shape[1] for stacked in base.layers[0].linears)
    return layer * len(base.layers), layer + 4 * base.embedding.shape[1] * len(base.layers)
