"""A context on torch: key and value memory for many sequences, and passes over it.

Rows flow in as numpy arrays, logits flow out. The last bits of a row do not depend on its company: products give each
row the same whatever their number (which is padded, since below four rows some libraries take another path), and how
much memory attention reads depends on the row's own length. Knows nothing of conversations, versions or sampling.
"""

from __future__ import annotations

from itertools import count
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn.functional import rms_norm, silu

from ...base.arithmetic import halves, rotate
from ...base.kernels import small_products
from ...base.model import BaseModel
from ...base.modules import check_adapter
from ...base.tensors import load
from ..batching.context import Arrays, Ints, Logits
from .attention import Appended, Attention, OneEach
from .blocks import Block, merged, plain

ROWS = 8
"""Rows of a pass are padded to a multiple of this."""


class TorchContext:
    """``batching.context.Context``. Raises ``BaseModelError`` where the base cannot be read."""

    def __init__(self, base: BaseModel, sequences: int, length: int) -> None:
        self._config = base.config
        self._base = load(base, torch.device("cpu"))
        self._plain = plain(self._base)
        self._blocks = self._plain
        self._adapters: dict[int, tuple[Block, ...]] = {}
        self._handles = count(1)
        heads = self._base.heads
        self._memory = torch.zeros(len(self._plain), 2, sequences, heads.keys, length, heads.size)
        """Keys and values of every layer and sequence; pages that nobody has written take no room."""
        angles = torch.arange(length)[:, None] * self._base.frequencies
        self._cosine, self._sine = angles.cos().float()[:, None], angles.sin().float()[:, None]  # (C, 1, D/2)
        self.sequences = sequences
        self.length = length
        self.gathers = True
        self.vocabulary = len(self._base.embedding)
        self.weights = sum(stacked.weight.nbytes for layer in self._base.layers for stacked in layer.linears)
        self.held: Ints = np.zeros(sequences, np.int32)

    @torch.inference_mode()
    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        """See the protocol."""
        self.held[sequences] = positions + 1
        at = _padded(positions)
        x = self._base.embedding[_padded(tokens)]  # (n, H)
        cosine, sine = self._cosine[at], self._sine[at]
        attention: Attention
        begins = np.flatnonzero(np.diff(sequences, prepend=-1))
        if len(begins) < len(sequences):
            attention = Appended(sequences[begins], positions, begins)
        else:
            attention = OneEach(sequences, positions, self.length)
        wanted = np.flatnonzero(outputs)
        eps, size = self._base.eps, (x.shape[1],)
        for number, block in enumerate(self._blocks):
            q, k, v = self._heads(block, rms_norm(x, size, block.attention_norm, eps), cosine, sine)
            with small_products():
                attended = attention(self._memory[number], q, k, v)
            if number == len(self._blocks) - 1:
                kept = _padded(wanted)
                attended, x = attended[kept], x[kept]
            x = x + block.o(attended)
            gate, up = halves(block.gate_up(rms_norm(x, size, block.mlp_norm, eps)))
            x = x + block.down(silu(gate).mul_(up))
        logits: Logits = torch.mm(rms_norm(x, size, self._base.norm, eps), self._base.head.T)[: len(wanted)].numpy()
        return logits

    def _heads(self, block: Block, x: Tensor, cosine: Tensor, sine: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Queries (n, K, R, D), scaled, and keys and values (n, K, D), at their positions."""
        heads = self._base.heads
        qkv = block.qkv(x).view(len(x), -1, heads.size)
        turned = qkv[:, : heads.turned]
        if block.head_norm is not None:
            turned = rms_norm(turned, (heads.size,), None, self._base.eps).mul_(block.head_norm)
        turned = rotate(turned, cosine, sine)
        q = turned[:, : heads.queries].mul(heads.scale).view(len(x), heads.keys, heads.fold, heads.size)
        return q, turned[:, heads.queries :], qkv[:, heads.turned :]

    def cut(self, sequence: int, length: int) -> None:
        """See the protocol."""
        self.held[sequence] = min(self.held[sequence], length)

    def copy(self, source: int, target: int, length: int) -> None:
        """See the protocol."""
        self._memory[:, :, target, :, :length] = self._memory[:, :, source, :, :length]
        self.held[target] = length

    def use(self, adapter: int | None) -> None:
        """See the protocol."""
        self._blocks = self._plain if adapter is None else self._adapters[adapter]

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        """See the protocol."""
        check_adapter(self._config, adapter)
        handle = next(self._handles)
        self._adapters[handle] = merged(self._base, adapter, alpha)
        return handle

    def free_adapter(self, adapter: int) -> None:
        """See the protocol."""
        if self._blocks is self._adapters.pop(adapter):
            self._blocks = self._plain

    def close(self) -> None:
        """See the protocol."""
        self._memory = self._memory[:0]


def _padded(numbers: NDArray[np.integer[Any]]) -> Tensor:
    """Indices, the last one repeated up to a multiple of ``ROWS``; none stay none."""
    rows = -(-len(numbers) // ROWS) * ROWS
    padded = np.empty(rows, np.int64)
    padded[: len(numbers)] = numbers
    padded[len(numbers) :] = numbers[-1:]
    return torch.from_numpy(padded)
