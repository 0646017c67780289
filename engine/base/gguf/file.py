"""GGUF files: their header read, and files written one tensor at a time."""

from __future__ import annotations

import mmap
import struct
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Any

import gguf
import numpy as np
from numpy.typing import NDArray

from ...errors import BaseModelError

# Reads the header of a GGUF file: fields, and shape, type and place of every tensor.
#
# Format: magic, version, counts, then keys with typed values, then names, shapes, types and offsets of the tensors;
# see https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. The gguf package's own reader takes seconds for a
# tokenizer of 150,000 entries; here lists are skipped unless they are asked for.

Value = str | int | float | bool

SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
"""The format's numbers for types, as format characters of ``struct``."""
STRING, LIST = 8, 9
VERSIONS = (2, 3)
MOST_AXES = 4
"""The most dimensions of a tensor."""
LONGEST = 1 << 24
"""The most bytes of a name or a text, such as a chat template."""


@dataclass(frozen=True)
class GgufHeader:
    """The header of a GGUF file."""

    fields: dict[str, Value]
    """The metadata, without lists."""
    shapes: dict[str, tuple[int, ...]]
    """The shape of each tensor as in numpy: the last axis is contiguous."""
    size: int
    """Bytes of the complete file."""
    places: dict[str, tuple[int, int]]
    """The number of each tensor's type in ``GGMLQuantizationType``, and the byte at which its data begin."""
    lists: dict[str, list[Any]]
    """The lists that were asked for, of those that the file has."""

    @property
    def parameters(self) -> int:
        """The number of the model's parameters."""
        return sum(prod(shape) for name, shape in self.shapes.items() if not name.startswith("rope_"))

    def number(self, key: str) -> int:
        """The integer under ``key``; 0 if there is none."""
        value = self.fields.get(key, 0)
        return int(value) if isinstance(value, int) else 0


def read_header(path: Path, lists: Collection[str] = ()) -> GgufHeader:
    """Read the header, with the ``lists`` under these keys. Raises ``BaseModelError`` for what is no GGUF file, or one
    that ends too early."""
    try:
        with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[:4] != b"GGUF":
                raise BaseModelError("is no GGUF file: it does not begin with these four letters.", where=str(path))
            if (version := int.from_bytes(data[4:8], "little")) not in VERSIONS:
                big = int.from_bytes(data[4:8], "big") in VERSIONS
                kind = "for big-endian processors" if big else f"of version {version}"
                hint = "marlaas and llama.cpp read versions 2 and 3, little-endian: take a newer file."
                raise BaseModelError(f"is a GGUF file {kind}.", hint, where=str(path))
            header, length = _Cursor(data, lists).header(), len(data)
    except FileNotFoundError as error:
        raise BaseModelError(f"There is no GGUF file {path}.") from error
    except OSError as error:
        raise BaseModelError(f"the GGUF file cannot be read: {error.strerror}.", where=str(path)) from error
    except struct.error as error:
        raise BaseModelError(
            "the GGUF file ends within its header; it was not copied whole.", where=str(path)
        ) from error
    except BaseModelError:
        raise
    except (ValueError, KeyError, RecursionError) as error:  # an empty file; unknown numbers for types; endless lists
        raise BaseModelError("is no GGUF file.", where=str(path)) from error
    if length < header.size:
        raise BaseModelError(
            f"the GGUF file has {length} bytes of {header.size}; it was not copied whole.", where=str(path)
        )
    return header


class _Cursor:
    """Reads values from bytes, one after another. Raises ``struct.error`` past the end."""

    def __init__(self, data: mmap.mmap, lists: Collection[str]) -> None:
        self._data = data
        self._at = 8
        self._wanted, self._lists = lists, dict[str, list[Any]]()

    def header(self) -> GgufHeader:
        from gguf import (
            GGML_QUANT_SIZES,
            GGMLQuantizationType,
        )  # slow to import, and a command may ask only for a file's name

        count, fields = self._scalar("Q"), {}
        for _ in range(self._scalar("Q")):
            key = self._string()
            value = self._value(self._scalar("I"), key)
            if value is not None:
                fields[key] = value
        known = {int(kind) for kind in GGMLQuantizationType}
        shapes, places, end = {}, dict[str, tuple[int, int]](), 0
        for _ in range(count):
            name = self._string()
            shape = tuple(self._scalar("Q") for _ in range(self._axes()))
            kind, offset, elements = self._scalar("I"), self._scalar("Q"), 1
            for axis in shape:
                elements *= axis
            shapes[name], places[name] = shape[::-1], (kind, offset)
            if kind not in known:
                raise BaseModelError(
                    f"the tensor {name} is of the type {kind}, which the gguf package does not know.", "Upgrade gguf."
                )
            block, size = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
            end = max(end, offset + elements // block * size)
        alignment = fields.get("general.alignment", 32)
        if not isinstance(alignment, int) or not 0 < alignment < 1 << 32:
            raise ValueError("no alignment")
        start = -(-self._at // alignment) * alignment
        places = {name: (kind, start + offset) for name, (kind, offset) in places.items()}
        return GgufHeader(fields, shapes, start + end, places, self._lists)

    def _axes(self) -> int:
        count = self._scalar("I")
        if count > MOST_AXES:
            raise ValueError("no shape")
        return count

    def _value(self, kind: int, key: str = "") -> Value | None:
        if kind == STRING:
            return self._string()
        if kind != LIST:
            value: Value = self._scalar(SCALARS[kind])
            return value
        kind, count = self._scalar("I"), self._scalar("Q")
        if key in self._wanted and count <= LONGEST:
            scalar = SCALARS.get(kind)
            self._lists[key] = [self._scalar(scalar) if scalar else self._string() for _ in range(count)]
        elif kind in SCALARS:
            self._skip(count * struct.calcsize(SCALARS[kind]))
        else:
            for _ in range(count):
                self._skip(self._scalar("Q")) if kind == STRING else self._value(kind)
        return None

    def _scalar(self, kind: str) -> int:
        (value,) = struct.unpack_from(f"<{kind}", self._data, self._at)
        self._at += struct.calcsize(kind)
        return value  # type: ignore[no-any-return]

    def _string(self) -> str:
        start, length = self._at + 8, self._scalar("Q")
        if length > LONGEST:
            raise ValueError("no text")
        self._skip(length)
        return self._data[start : self._at].decode("utf-8", "replace")

    def _skip(self, count: int) -> None:
        self._at += count
        if self._at > len(self._data):
            raise struct.error("past the end")


# Writes one GGUF file from fields and tensors, holding one tensor in memory at a time.
#
# The only place that calls the ``gguf`` package. Knows nothing of models or adapters.

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
