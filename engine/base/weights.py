"""Reads safetensors weights as float32 numpy arrays, one tensor at a time, shards included.

Why not the safetensors package: its numpy side knows no bfloat16, in which most models are stored. Format: eight bytes
with the length of a JSON header (little-endian), the header (name → dtype, shape, data_offsets), then the data; see
https://github.com/huggingface/safetensors#format.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ..errors import BaseModelError
from .files import quantised, quantised_as

Array = NDArray[np.float32]

STORED = {"F64": "<f8", "F32": "<f4", "F16": "<f2", "BF16": "<u2"}
"""numpy's type for each stored type; bfloat16 is read as its bits."""


@dataclass(frozen=True)
class Tensor:
    """The place of one tensor in a file."""

    file: Path
    kind: str
    shape: tuple[int, ...]
    offset: int
    """Bytes from the start of the file."""

    def load(self) -> Array:
        """Its values as float32; a copy, not a view of the file."""
        count = int(np.prod(self.shape, dtype=np.int64))
        raw = np.fromfile(self.file, STORED[self.kind], count, offset=self.offset)
        if raw.size != count:
            raise BaseModelError("ends too early; it was probably not copied whole.", where=str(self.file))
        values = widen(raw) if self.kind == "BF16" else raw.astype(np.float32, copy=False)
        return values.reshape(self.shape)


def widen(bits: NDArray[np.uint16]) -> Array:
    """bfloat16 bits as float32: the same upper half, so every value is exact."""
    wide = bits.astype(np.uint32)
    wide <<= 16  # in place: an embedding of 150,000 rows takes half a gigabyte
    return wide.view(np.float32)


class Weights:
    """All tensors of a model, by their Hugging Face names. Raises ``BaseModelError`` on damaged or unknown files."""

    def __init__(self, files: Iterable[Path]) -> None:
        self._tensors = {name: tensor for file in files for name, tensor in read_header(file)}

    def __iter__(self) -> Iterator[str]:
        return iter(self._tensors)

    def __contains__(self, name: str) -> bool:
        return name in self._tensors

    def shape(self, name: str) -> tuple[int, ...]:
        """The tensor's shape, without reading its data."""
        return self.find(name).shape

    def load(self, name: str) -> Array:
        """float32 values in the tensor's shape."""
        return self.find(name).load()

    def find(self, name: str) -> Tensor:
        """The tensor's place. Raises ``BaseModelError`` if there is none."""
        if name not in self._tensors:
            folder = next((tensor.file.parent for tensor in self._tensors.values()), "the folder")
            raise BaseModelError(
                f"the weights hold no {name}, which config.json makes them have.",
                "Configuration and weights belong to different models, or a file is missing.",
                where=str(folder),
            )
        return self._tensors[name]


def read_header(file: Path) -> Iterator[tuple[str, Tensor]]:
    """Name and place of every tensor of one file."""
    try:
        with open(file, "rb") as opened:
            length = int.from_bytes(opened.read(8), "little")
            header = json.loads(opened.read(length)) if length < file.stat().st_size else None
        if not isinstance(header, dict):
            raise ValueError("its header is longer than the file")
        for name, entry in header.items():
            if name == "__metadata__":
                continue
            method = quantised_as(name, entry["dtype"])
            if method:
                raise quantised(file.parent, f"{file.name} has {name} as {entry['dtype']}", method)
            if entry["dtype"] not in STORED:
                raise ValueError(f"tensor {name} is stored as {entry['dtype']}, marlaas reads {', '.join(STORED)}")
            shape, start = tuple(entry["shape"]), entry["data_offsets"][0]
            if not all(isinstance(size, int) and size >= 0 for size in (*shape, start)):
                raise ValueError(f"tensor {name} has no shape or place")
            yield name, Tensor(file, entry["dtype"], shape, 8 + length + start)
    except BaseModelError:
        raise
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError, ArithmeticError) as error:
        raise BaseModelError(f"the weights cannot be read: {error}.", where=str(file)) from error
