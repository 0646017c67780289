"""A ``llama_batch`` over numpy arrays, so that filling it takes no Python loop."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..batching.context import Ints


class Rows:
    """Room for ``size`` rows of a decode call."""

    def __init__(self, library: Any, size: int) -> None:
        self._token, self._position, self._sequence = (np.zeros(size, np.int32) for _ in range(3))
        self._output = np.zeros(size, np.int8)
        self._one = np.ones(size, np.int32)
        self._pointers = self._sequence.ctypes.data + np.arange(size, dtype=np.uintp) * self._sequence.itemsize
        self._batch = library.llama_batch()
        arrays: dict[str, NDArray[Any]] = {
            "token": self._token,
            "pos": self._position,
            "n_seq_id": self._one,
            "seq_id": self._pointers,
            "logits": self._output,
        }
        for field, array in arrays.items():
            kind = dict(library.llama_batch._fields_)[field]
            setattr(self._batch, field, ctypes.cast(array.ctypes.data, kind))

    def fill(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Any:
        """The batch of these rows, all (n,) with n up to the size; valid until the next call."""
        count = len(tokens)
        self._token[:count] = tokens
        self._position[:count] = positions
        self._sequence[:count] = sequences
        self._output[:count] = outputs
        self._batch.n_tokens = count
        return self._batch
