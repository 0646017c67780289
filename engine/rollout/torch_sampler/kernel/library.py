"""The compiled passes as ctypes sees them: the structures and functions of ``decode.c``. Knows no torch.

Addresses are plain numbers; whoever fills a structure in keeps the arrays that it points to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from ctypes import POINTER, Structure, c_float, c_long, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]

LINEARS, MODULES = 4, 3
"""Linear layers of a block, each of which may be of up to so many modules with the same input."""
ALIGNED = 64
"""Bytes: the widest vector, and a line of every usual cache."""


def _fields(*groups: tuple[Any, ...]) -> list[tuple[str, Any]]:
    """Fields from types, each with the names of its fields."""
    return [(name, kind) for kind, *names in groups for name in names]


class Matrix(Structure):
    """A matrix in one of two types."""

    _fields_ = _fields((c_void_p, "whole", "halves"))


class Linear(Structure):
    """y = x Wᵀ + b."""

    _fields_ = _fields((c_long, "inputs", "outputs"), (Matrix, "weight"), (c_void_p, "bias"))


class Layer(Structure):
    """One block of the base."""

    _fields_ = _fields((c_void_p, "attention_norm", "head_norm", "mlp_norm"), (Linear * LINEARS, "linears"))


class Base(Structure):
    """The base, the memory of all sequences, and the room of a pass."""

    _fields_ = _fields(
        (c_long, "layers", "hidden", "inner", "queries", "keys", "size", "vocabulary", "length", "sequences"),
        (c_float, "eps", "scale"),
        (c_void_p, "embedding", "norm"),
        (Matrix, "head"),
        (c_void_p, "cosine", "sine"),
        (POINTER(Layer), "each"),
        (c_void_p, "memory", "room"),
    )


class Addition(Structure):
    """What an adapter adds to one linear layer."""

    _fields_ = _fields(
        (c_long, "rank"),
        (c_void_p, "down"),
        (c_long * MODULES, "ranks", "columns", "outputs"),
        (c_void_p * MODULES, "ups"),
    )


class Rows(Structure):
    """The rows of a pass; ``additions`` (count,) are addresses of adapters."""

    _fields_ = _fields((c_long, "count"), (c_void_p, "tokens", "positions", "sequences", "wanted", "additions"))


class Library:
    """One compiled file. Raises ``OSError`` where it cannot be loaded, ``AttributeError`` where it is another."""

    def __init__(self, path: Path) -> None:
        loaded = ctypes.CDLL(str(path))

        def function(name: str, result: Any, *arguments: Any) -> Callable[..., Any]:
            found = getattr(loaded, name)
            found.restype, found.argtypes = result, arguments
            called: Callable[..., Any] = found
            return called

        self.packed_size = function("packed_size", c_long, c_long, c_long)
        self._pack = function("pack", None, c_void_p, c_long, c_long, c_float, c_void_p)
        self._pack_halves = function("pack_halves", None, c_void_p, c_long, c_long, c_void_p)
        self.memory_size = function("memory_size", c_long, c_long)
        self.block: int = function("block_size", c_long)()
        """Tokens of memory that lie together."""
        self.room_size = function("room_size", c_long, POINTER(Base), c_long)
        self.logits_size = function("logits_size", c_long, c_long)
        self.decode = function("decode", None, POINTER(Base), c_long, POINTER(Rows), c_void_p)
        self.draw = function("draw", None, c_void_p, c_long, c_long, c_void_p, c_void_p, c_void_p, c_void_p, c_void_p)

    def packed(self, weight: Floats) -> Floats:
        """W (out, in), as the products read it."""
        found = aligned(self.room_for(weight))
        self.pack(weight, 1.0, found.ctypes.data)
        return found

    def room_for(self, weight: Floats) -> int:
        """Numbers that W (out, in) takes when it is packed, filled up so that what follows is aligned."""
        outputs, inputs = weight.shape
        line = ALIGNED // 4
        return -(-int(self.packed_size(inputs, outputs)) // line) * line

    def pack(self, weight: Floats, factor: float, address: int) -> None:
        """Write ``factor`` times W (out, in) to an aligned address, as the products read it."""
        outputs, inputs = weight.shape
        whole = np.ascontiguousarray(weight, np.float32)
        self._pack(whole.ctypes.data, inputs, outputs, factor, address)

    def halved(self, weight: Floats) -> Floats | None:
        """As ``packed``, in half as many bytes; None where some number of W is none of bfloat16."""
        outputs, inputs = weight.shape
        whole = np.ascontiguousarray(weight, np.float32)
        if np.any(whole.view(np.uint32) & 0xFFFF):
            return None
        found = aligned(-(-self.packed_size(inputs, outputs) // 2))
        self._pack_halves(whole.ctypes.data, inputs, outputs, found.ctypes.data)
        return found


def aligned(count: int) -> Floats:
    """``count`` zeros that begin at a multiple of ``ALIGNED``."""
    whole = np.zeros(count + ALIGNED // 4, np.float32)
    first = -whole.ctypes.data % ALIGNED // 4
    return whole[first : first + count]
