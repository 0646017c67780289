"""A LoRA adapter as a GGUF file: in memory for the sampler, on disk for export.

Adapters are dictionaries with the names of ``engine/adapters/statefile.py``.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...errors import AdapterError
from ..modules import check_adapter, pairs
from .file import Entry, write_gguf
from .names import GgufNames

Array = NDArray[np.float32]


def write_adapter(names: GgufNames, adapter: dict[str, Array], alpha: float, path: Path) -> None:
    """Write the adapter's GGUF at ``path``; llama.cpp scales its output by ``alpha`` / rank, as PEFT does.

    Raises ``AdapterError`` if it does not fit the base, or if the file cannot be written; ``BaseModelError`` if
    llama.cpp's architecture has no such module.
    """
    check_adapter(names.config, adapter)
    fields: dict[str, str | int | float] = {
        "general.type": "adapter",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(alpha),
    }
    try:
        write_gguf(path, names.architecture, fields, list(adapter_entries(names, adapter)))
    except OSError as error:
        why = error.strerror or "the disk took a part of it only"
        raise AdapterError(f"the adapter file could not be written: {why}.", where=str(path)) from error


def adapter_entries(names: GgufNames, adapter: dict[str, Array]) -> Iterator[Entry]:
    """A and B of every module under llama.cpp's names; B's rows, the layer's outputs, are in llama.cpp's order."""
    for module, a, b in pairs(adapter):
        name = names.module(module)
        ordered = names.rows(module, b)
        yield Entry(f"{name}.weight.lora_a", a.shape, lambda a=a: a)  # type: ignore[misc]
        yield Entry(f"{name}.weight.lora_b", b.shape, lambda b=ordered: b)  # type: ignore[misc]


@contextmanager
def adapter_in_memory(names: GgufNames, adapter: dict[str, Array], alpha: float) -> Iterator[Path]:
    """A path at which the adapter's GGUF can be read within the ``with`` block; on Linux it is in memory."""
    if hasattr(os, "memfd_create"):
        descriptor = os.memfd_create("adapter.gguf")
        path = Path(f"/proc/self/fd/{descriptor}")
    else:
        descriptor, name = tempfile.mkstemp(suffix=".gguf")
        path = Path(name)
    try:
        write_adapter(names, adapter, alpha, path)
        yield path
    finally:
        os.close(descriptor)
        if not str(path).startswith("/proc/"):
            path.unlink(missing_ok=True)
