"""A context on torch.

Last bits do not depend on other rows: rows are padded, since below four some libraries take another path, and attention
reads by the row's length. bfloat16 also needs calls of one size (``blocks``).
"""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from ...devices.limits import LentCores
from ...models.find import BaseModel
from ...models.kernels import halves, rotate
from ...models.tensors import Layer, load
from ...models.weights import check_adapter
from ..batching.context import Arrays, Context, Handles, Ints, Logits
from .blocks import Appended, Linear, OneEach, weights_of
from .cache import TILE, AdapterCache, Mix, untouched

TorchWeights = Literal["f32", "bf16"]


class TorchContext(Context):
    """A context on torch. Raises ``BaseModelError`` if the base cannot be read."""

    def __init__(
        self,
        base: BaseModel,
        sequences: int,
        length: int,
        weights: TorchWeights = "f32",
        cores: LentCores | None = None,
    ) -> None:
        """``cores`` may change per layer, without reproducible last bits."""
        self._cores = cores
        self._config = base.config
        self._kind = torch.float32 if weights == "f32" else torch.bfloat16
        loaded = load(base, torch.device("cpu"), self._kind)
        self._bank = AdapterCache(loaded)
        self.weights = sum(linear.weight.nbytes for layer in loaded.layers for linear in layer.linears)
        layers, table = deque(loaded.layers), loaded.embedding.to(self._kind)
        self._base, output = replace(loaded, layers=(), embedding=table, head=table), loaded.head
        del loaded
        self._blocks, self._head = weights_of(layers, output, half=weights != "f32")
        self._alike = True
        self._adapters: Handles = np.empty(0, np.int64)
        self._mixed: tuple[tuple[bytes, bool], Mix] | None = None
        """The last one, with its adapters and its ``alike`` flag."""
        heads = self._base.heads
        self._memory = untouched(base.config.layers, 2, sequences, heads.keys, length, heads.size, dtype=self._kind)
        """Keys and values of every layer and sequence; unwritten pages take no memory."""
        angles = torch.arange(length)[:, None] * self._base.frequencies
        self._cosine, self._sine = angles.cos().float()[:, None], angles.sin().float()[:, None]  # (C, 1, D/2)
        self.sequences = sequences
        self.length = length
        self.vocabulary = len(self._base.embedding)
        self.held: Ints = np.zeros(sequences, np.int32)

    @torch.inference_mode()
    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        self.held[sequences] = positions + 1
        at = _padded(positions)
        x = self._base.embedding[_padded(tokens)].float()  # (n, H)
        cosine, sine = self._cosine[at], self._sine[at]
        attention: Appended | OneEach
        begins = np.flatnonzero(np.diff(sequences, prepend=-1))
        if len(begins) < len(sequences):
            attention = Appended(sequences[begins], positions, begins)
        else:
            attention = OneEach(sequences, positions, self.length)
        mix, wanted = self._mix(np.arange(len(tokens))), np.flatnonzero(outputs)
        eps, size, alike = self._base.eps, (x.shape[1],), self._alike
        for number, block in enumerate(self._blocks):
            if self._cores is not None:
                self._cores.settle(not alike)
            q, k, v = self._heads(block, rms_norm(x, size, block.attention_norm, eps), mix, cosine, sine)
            attended = attention(self._memory[number], q, k, v)
            if number == len(self._blocks) - 1 and len(wanted) < len(tokens):
                if not len(wanted):
                    return np.empty((0, self.vocabulary), np.float32)
                kept = _padded(wanted)
                attended, x = attended[kept], x[kept]
                mix = self._mix(wanted)
            x = x + block.o(attended, mix, alike)
            gate, up = halves(block.gate_up(rms_norm(x, size, block.mlp_norm, eps), mix, alike))
            x = x + block.down(silu(gate).mul_(up), mix, alike)
        logits: Logits = self._head(rms_norm(x, size, self._base.norm, eps), alike)[: len(wanted)].numpy()
        return logits

    def _mix(self, rows: NDArray[np.int64]) -> Mix | None:
        if not len(self._adapters) or not len(rows):
            return None
        own = self._adapters if len(self._adapters) > 1 else np.repeat(self._adapters, rows[-1] + 1)
        adapters = own[_padded(rows).numpy()]
        key = adapters.tobytes(), self._alike
        if self._mixed is None or self._mixed[0] != key:
            self._mixed = key, Mix(self._bank, adapters, self._alike)
        return self._mixed[1]

    def _heads(
        self, block: Layer[Linear], x: Tensor, mix: Mix | None, cosine: Tensor, sine: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scaled queries (n, K, R, D), and keys and values (n, K, D)."""
        heads = self._base.heads
        qkv = block.qkv(x, mix, self._alike).view(len(x), -1, heads.size)
        turned = qkv[:, : heads.turned]
        if block.head_norm is not None:
            turned = rms_norm(turned, (heads.size,), None, self._base.eps).mul_(block.head_norm)
        turned = rotate(turned, cosine, sine)
        q = turned[:, : heads.queries].mul(heads.scale).view(len(x), heads.keys, heads.fold, heads.size)
        return q.to(self._kind), turned[:, heads.queries :].to(self._kind), qkv[:, heads.turned :].to(self._kind)

    def copy(self, source: int, targets: list[int], length: int) -> None:
        for target in targets:
            self._memory[:, :, target, :, :length] = self._memory[:, :, source, :, :length]
            self.held[target] = length

    def use(self, adapters: Handles, alike: bool = True) -> None:
        self._adapters = adapters
        self._alike = alike or self._kind == torch.float32  # in float32 the same bits cost nothing

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        check_adapter(self._config, adapter)
        self._mixed = None
        return self._bank.add(adapter, alpha)

    def free_adapter(self, adapter: int) -> None:
        self._mixed = None
        self._bank.remove(adapter)

    def close(self) -> None:
        self._memory = self._memory[:0]


def _padded(numbers: NDArray[np.integer[Any]]) -> Tensor:
    rows = -(-len(numbers) // TILE) * TILE
    padded = np.empty(rows, np.int64)
    padded[: len(numbers)] = numbers
    padded[len(numbers) :] = numbers[-1:]
    return torch.from_numpy(padded)
