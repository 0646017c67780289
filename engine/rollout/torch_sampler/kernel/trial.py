"""``python -m …trial LIBRARY``: computes with a library that was just compiled; only this process may die of it.

Whether its results are right is for ``check`` to say.
"""

from __future__ import annotations

import sys
from ctypes import byref
from pathlib import Path

import numpy as np

from .library import Base, Library, Rows, aligned

HIDDEN, VOCABULARY = 21, 45
MOST = 24
"""Rows of the largest product: all sizes up to it are tried."""


def main(path: Path) -> None:
    """An embedding, a norm, an output matrix, and tokens drawn from it. Raises ``ArithmeticError`` for a wrong sum."""
    compiled = Library(path)
    embedding = np.random.default_rng(0).random((VOCABULARY, HIDDEN), np.float32) + 1
    norm, head = np.ones(HIDDEN, np.float32), compiled.packed(embedding)
    base = Base(hidden=HIDDEN, inner=HIDDEN, queries=1, keys=1, size=2, vocabulary=VOCABULARY, length=compiled.block)
    base.embedding, base.norm, base.head.whole = embedding.ctypes.data, norm.ctypes.data, head.ctypes.data
    room, stride = aligned(compiled.room_size(base, 0)), compiled.logits_size(VOCABULARY)
    base.room = room.ctypes.data
    logits, weights = aligned(MOST * stride), aligned(stride)
    scaled = embedding / np.sqrt(np.square(embedding).mean(1, keepdims=True))
    for count in range(1, MOST + 1):
        tokens, zeros = np.arange(count, dtype=np.int32), np.zeros(count, np.int32)
        wanted, additions = np.ones(count, np.int8), np.zeros(count, np.uint64)
        given = (tokens, zeros, zeros, wanted, additions)
        rows = Rows(count, *(each.ctypes.data for each in given))
        compiled.decode(byref(base), 0, byref(rows), logits.ctypes.data)
        found = logits.reshape(MOST, stride)[:count, :VOCABULARY]
        if not np.allclose(found, scaled[:count] @ embedding.T, rtol=1e-4):
            raise ArithmeticError("a product is wrong")
        heats, noise, logprobs = np.ones(count), np.full(count, 0.5), np.empty(count, np.float32)
        arguments = (heats, noise, weights, tokens, logprobs)
        compiled.draw(logits.ctypes.data, count, VOCABULARY, *(each.ctypes.data for each in arguments))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
