"""Writes one GGUF file from fields and tensors, holding one tensor in memory at a time.

The only place that calls the ``gguf`` package. Knows nothing of models or adapters.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import gguf
import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Fields = dict[str, str | int | float]
"""Metadata; a Python int becomes uint32, a float float32."""


@dataclass(frozen=True)
class Entry:
    """One tensor to write."""

    name: str
    shape: tuple[int, ...]
    load: Callable[[], Array]
    """Returns the values; called once, just before they are written."""
    half: bool = False
    """Whether to store it as float16."""


def write_gguf(path: Path, architecture: str, fields: Fields, entries: Sequence[Entry]) -> None:
    """Write the file at ``path`` directly; a caller that needs it whole or not at all renames it afterwards."""
    writer = gguf.GGUFWriter(path, architecture)
    try:
        for key, value in fields.items():
            if isinstance(value, str):
                writer.add_string(key, value)
            elif isinstance(value, int):
                writer.add_uint32(key, value)
            else:
                writer.add_float32(key, value)
        for entry in entries:
            kind = np.dtype(np.float16 if entry.half else np.float32)
            writer.add_tensor_info(entry.name, entry.shape, kind, int(np.prod(entry.shape)) * kind.itemsize)
        writer.write_header_to_file()
        writer.write_kv_data_to_file()
        writer.write_ti_data_to_file()
        for entry in entries:
            array = entry.load()
            writer.write_tensor_data(np.ascontiguousarray(array, np.float16 if entry.half else np.float32))
    finally:
        writer.close()
