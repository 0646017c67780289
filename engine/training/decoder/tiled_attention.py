"""Causal attention over packed batches in tiles, for long sequences on a processor: nothing grows with their square.

Queries of a prompt see that prompt; queries of an answer see the whole prompt and the answer so far, as two parts that
are merged into one softmax. Tokens of a prompt lie one after the other in a batch, and so do all answers to it: each
call reads and writes views of the tables, without padding. Results and sums are kept for the backward pass, which
computes the tiles once more. See ``base/tiled``.

Shapes are as in ``attention``. Results are equal to it within the precision of ``dtype``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ...base import HeadShape, attend, attend_backward, merged
from .places import Places


@dataclass(frozen=True)
class Part:
    """Queries that attend to keys: all of them, or each those up to its own."""

    queries: slice
    keys: slice

    @property
    def causal(self) -> bool:
        """Whether each query sees the keys up to its own, which are its own tokens'."""
        return self.queries == self.keys


@dataclass(frozen=True)
class TiledTape:
    """What the backward pass needs."""

    turned: Tensor
    v: Tensor
    outputs: Tensor
    """(T, K · R · D)"""
    sums: Tensor
    """(K, R, T): logarithms of the softmax's sums."""


@dataclass(frozen=True)
class TiledAttention:
    """Implements ``attention.Attention`` in tiles."""

    heads: HeadShape
    places: int
    """T"""
    dtype: torch.dtype
    """The type in which queries, keys and values are multiplied."""
    first: tuple[Part, ...]
    """Prompts on themselves, and all answers to a prompt on that prompt."""
    then: tuple[Part, ...]
    """Answers on themselves."""

    @classmethod
    def of(cls, places: Places, heads: HeadShape, dtype: torch.dtype = torch.float32) -> TiledAttention:
        """Find the parts."""
        first: list[Part] = []
        then: list[Part] = []
        prompts = places.prefixes[:, 0].tolist(), places.prefix_lengths.tolist()
        answers = places.rows[..., 0].tolist(), (places.rows != places.padding).sum(-1).tolist()
        for begin, length, begins, counts in zip(*prompts, *answers, strict=True):
            prompt = slice(begin, begin + length)
            rows = [slice(start, start + count) for start, count in zip(begins, counts, strict=True) if count]
            first.append(Part(prompt, prompt))
            if rows:
                first.append(Part(slice(rows[0].start, rows[-1].stop), prompt))
            then += [Part(row, row) for row in rows]
        return cls(heads, places.count, dtype, tuple(first), tuple(then))

    def forward(self, turned: Tensor, v: Tensor) -> tuple[Tensor, TiledTape]:
        """See ``attention.Attention``."""
        turned, v = turned.to(self.dtype), v.to(self.dtype)
        outputs = turned.new_zeros(self.places, self.heads.queries * self.heads.size)
        sums = torch.zeros(self.heads.keys, self.heads.fold, self.places)
        (q, keys, values), out = self._by_head(turned, v), self._folded(self._table(outputs))
        for number, part in enumerate((*self.first, *self.then)):
            asked, seen = part.queries, part.keys
            found = attend(q[:, :, asked], keys[:, seen], values[:, seen], self.heads.scale, part.causal)
            if number >= len(self.first):
                found = merged((out[:, :, asked], sums[:, :, asked]), found)
            out[:, :, asked], sums[:, :, asked] = found
        return outputs, TiledTape(turned, v, outputs, sums)

    def backward(self, grad: Tensor, tape: TiledTape) -> tuple[Tensor, Tensor]:
        """See ``attention.Attention``."""
        turned, v = torch.zeros(tape.turned.shape), torch.zeros(tape.v.shape)
        by_q, by_keys, by_values = self._by_head(turned, v)
        q, keys, values = self._by_head(tape.turned, tape.v)
        out, by_out = self._folded(self._table(tape.outputs)), self._folded(self._table(grad.to(self.dtype)))
        for part in (*self.first, *self.then):
            asked, seen = part.queries, part.keys
            found = attend_backward(
                by_out[:, :, asked],
                q[:, :, asked],
                keys[:, seen],
                values[:, seen],
                out[:, :, asked],
                tape.sums[:, :, asked],
                self.heads.scale,
                part.causal,
            )
            by_q[:, :, asked] += found[0]
            by_keys[:, seen] += found[1]
            by_values[:, seen] += found[2]
        return turned, v

    def _by_head(self, turned: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Views of queries (K, R, T, D), keys and values (K, T, D)."""
        queries, keys = turned[:, : self.heads.queries], turned[:, self.heads.queries :]
        return self._folded(queries), keys.transpose(0, 1), self._table(v).transpose(0, 1)

    def _folded(self, queries: Tensor) -> Tensor:
        """A view (K, R, T, D) of (T, K · R, D)."""
        return torch.unflatten(queries, 1, (self.heads.keys, self.heads.fold)).permute(1, 2, 0, 3)

    def _table(self, vectors: Tensor) -> Tensor:
        """A view (T, heads, D) of (T, heads · D)."""
        return torch.unflatten(vectors, 1, (-1, self.heads.size))
