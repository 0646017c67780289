"""State files as they are on the disk: safetensors with ``adapter/``, ``moment1/`` and ``moment2/`` and a header.

Reads and hashes with code of its own, so that a mistake in the engine's is not repeated here. From format 2 on a file
is sealed: ``sha256`` in its metadata is of the header's text and then of every array, by name.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

Matrices = dict[str, NDArray[np.float32]]


class Unreadable(Exception):
    """The file is missing, damaged or no state file."""


@dataclass(frozen=True)
class State:
    """One version's file."""

    rank: int
    alpha: float
    step: int
    updates: int
    """Updates that the optimizer has made since it last began anew."""
    base: str
    adapter: Matrices
    moment1: Matrices
    moment2: Matrices

    @property
    def resumable(self) -> bool:
        """Whether it holds the optimizer's moments."""
        return bool(self.moment1)


def read(path: Path) -> State:
    """The file's contents. Raises ``Unreadable``."""
    parts: dict[str, Matrices] = {"adapter": {}, "moment1": {}, "moment2": {}}
    try:
        with safe_open(path, framework="np") as file:
            metadata = file.metadata() or {}
            header = json.loads(metadata["marlaas"])
            seal = hashlib.sha256(metadata["marlaas"].encode())
            for key in sorted(file.keys()):
                part, _, name = key.partition("/")
                matrix = parts[part][name] = file.get_tensor(key)
                seal.update(f"{key}{matrix.shape}".encode() + matrix.tobytes())
        if (header["format"] > 1 or "sha256" in metadata) and metadata.get("sha256") != seal.hexdigest():
            raise ValueError("its seal is broken: some bytes are not those that were written")
        updates = header.get("updates")
        step = header["step"]
        return State(
            header["rank"], header["alpha"], step, step if updates is None else updates, header["base"], **parts
        )
    except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
        raise Unreadable(f"{path} cannot be read: {error}.") from error


def digest(adapter: Matrices) -> str:
    """The checksum that the database stores: SHA-256 over name, shape and bytes of each matrix, by name; 16 digits."""
    found = hashlib.sha256()
    for name in sorted(adapter):
        matrix = adapter[name]
        found.update(f"{name}{matrix.shape}".encode() + matrix.astype("<f4").tobytes())
    return found.hexdigest()[:16]


def flat(matrices: Matrices) -> NDArray[np.float64]:
    """All elements by name, float64 (P,)."""
    return np.concatenate([matrices[name].astype(np.float64).ravel() for name in sorted(matrices)])
