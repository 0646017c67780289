"""Random weights, written to safetensors files piece by piece: the memory needed does not grow with the model.

Weights are bfloat16, with an index of the files. Every tensor is drawn from a stream of its own, keyed by the seed and
its name, so that neither shards nor other tensors change it.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
from numpy.typing import NDArray

PIECE = 1 << 22
"""Values made in one piece."""


@dataclass(frozen=True)
class Spec:
    """One tensor: normally distributed values."""

    name: str
    shape: tuple[int, ...]
    scale: float
    """Standard deviation."""
    mean: float = 0.0

    @property
    def size(self) -> int:
        """How many values it has."""
        return int(np.prod(self.shape, dtype=np.int64))


def write_weights(folder: Path, specs: list[Spec], shards: int, seed: int) -> None:
    """Write ``model.safetensors``, or ``shards`` files of about one size and ``model.safetensors.index.json``.

    Raises ``ValueError`` for more shards than tensors.
    """
    if not 1 <= shards <= len(specs):
        raise ValueError(f"{len(specs)} tensors cannot be written as {shards} shards.")
    parts = split(specs, shards)
    names = [f"model-{number:05}-of-{shards:05}.safetensors" for number in range(1, shards + 1)]
    if shards == 1:
        names = ["model.safetensors"]
    for name, part in zip(names, parts, strict=True):
        with open(folder / name, "wb") as file:
            _write(file, part, seed)
    if shards > 1:
        index = {
            "metadata": {"total_size": 2 * sum(spec.size for spec in specs)},
            "weight_map": {spec.name: name for name, part in zip(names, parts, strict=True) for spec in part},
        }
        (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def split(specs: list[Spec], shards: int) -> list[list[Spec]]:
    """The tensors in runs, in their order and none empty; each ends where its share of all values is reached."""
    total, parts, seen = sum(spec.size for spec in specs), [list[Spec]()], 0
    for number, spec in enumerate(specs):
        missing = shards - len(parts)
        full = parts[-1] and seen * shards >= total * len(parts)
        if missing and (full or len(specs) - number == missing):
            parts.append([])
        parts[-1].append(spec)
        seen += spec.size
    return parts


def narrow(values: NDArray[np.float32]) -> NDArray[np.uint16]:
    """The bits of the nearest bfloat16, ties to even; for finite values."""
    bits = values.view(np.uint32)
    return ((bits + (np.uint32(0x7FFF) + ((bits >> 16) & 1))) >> 16).astype("<u2")


def draw(spec: Spec, seed: int) -> Iterator[NDArray[np.float32]]:
    """The tensor's values in order, in pieces."""
    random = np.random.Generator(np.random.SFC64([seed, zlib.crc32(spec.name.encode())]))
    for start in range(0, spec.size, PIECE):
        values = random.standard_normal(min(PIECE, spec.size - start), np.float32)
        values *= np.float32(spec.scale)
        values += np.float32(spec.mean)
        yield values


def _write(file: BinaryIO, specs: list[Spec], seed: int) -> None:
    """Write a file: the header's length, the header, the data (https://github.com/huggingface/safetensors#format)."""
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for spec in specs:
        start, end = end, end + 2 * spec.size
        header[spec.name] = {"dtype": "BF16", "shape": list(spec.shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    file.write(len(text).to_bytes(8, "little") + text)
    for spec in specs:
        for piece in draw(spec, seed):
            file.write(narrow(piece).data)
