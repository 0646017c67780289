"""The Qwen and Llama families with adapters, by this package's own forward and backward pass. See ``..model``.

Groups are packed, the mounted policy is merged into a copy of the base's layers or, where those are large, multiplied
beside them, and gradients are added to its vector directly.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

from ...base.model import BaseModel
from ...base.sizes import MOST_MERGED, PASS_BYTES, PassSize, layer_bytes, most_tokens
from ...base.tensors import load
from ..bank import PolicyMemory
from ..layout import Layout
from ..model import Criterion
from ..protocol import TrainGroup
from .merged import MergedWeights, plain
from .packing import PackedBatch, packed_batches
from .passes import Keep, logprobs, run, run_backward
from .split import SplitWeights


class Decoder:
    """Implements ``model.Model`` on any torch ``device``, in passes of ``room`` bytes unless a sequence needs more.

    Raises ``BaseModelError`` where the folder cannot be read.
    """

    def __init__(self, base: BaseModel, device: str = "cpu", room: int = PASS_BYTES) -> None:
        self._config, self._room = base.config, room
        self._base = load(base, torch.device(device))
        merged = layer_bytes(base.config) <= MOST_MERGED
        self._weights = MergedWeights(self._base) if merged else SplitWeights(self._base)
        self._plain = plain(self._base)
        self._layers = self._plain
        self._mounted: object = None

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
        groups = tuple(groups)
        longest = max((len(sequence.tokens) for group in groups for sequence in group.sequences), default=0)
        return packed_batches(groups, most_tokens(self._config, longest, self._room))

    @torch.no_grad()
    def logprobs(self, batch: PackedBatch, temperature: float, adapted: bool = True) -> Tensor:
        """Of the trained tokens, (N,); of the base alone unless ``adapted``."""
        layers = self._layers if adapted else self._plain
        return logprobs(self._base, layers, batch, temperature)

    @torch.no_grad()
    def differentiate(self, batch: PackedBatch, temperature: float, criterion: Criterion) -> None:
        """Run forward, ask ``criterion``, run backward: adds to the mounted policy's gradient."""
        size = PassSize(self._config, len(batch.tokens), batch.prefixes.shape[1] + batch.rows.shape[2])
        keep = Keep.ALL if size.all <= self._room else Keep.INPUTS
        logp, entropy, tape = run(self._base, self._layers, batch, temperature, keep)
        run_backward(self._base, self._layers, tape, criterion(logp, entropy), temperature)
