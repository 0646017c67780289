"""ggml's tensors and graphs: what a graph of llama.cpp is read with, and small graphs of our own on the processor.

Functions and structures are those of ggml.h and ggml-backend.h (https://github.com/ggml-org/llama.cpp). llama_cpp does
not declare them, so ``ggml`` compares the layout of a tensor with the installed library before anything relies on it.
"""

from __future__ import annotations

import ctypes
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .native import llama

F32, F16 = 0, 1
"""GGML_TYPE_F32 and GGML_TYPE_F16"""
NOTHING = 0
"""GGML_OP_NONE, the operation of a tensor that is computed by none."""
PROCESSOR = 0
"""GGML_BACKEND_DEVICE_TYPE_CPU"""
POINTER = ctypes.c_void_p
WORD = 8
"""Bytes of a pointer."""


class Tensor(ctypes.Structure):
    """``struct ggml_tensor``; ``ne`` are sizes, the fastest axis first, ``nb`` strides in bytes."""

    _fields_ = [
        ("type", ctypes.c_int),
        ("buffer", POINTER),
        ("columns", ctypes.c_int64),
        ("rows", ctypes.c_int64),
        ("ne2", ctypes.c_int64),
        ("ne3", ctypes.c_int64),
        ("item", ctypes.c_size_t),
        ("stride", ctypes.c_size_t),
        ("nb2", ctypes.c_size_t),
        ("nb3", ctypes.c_size_t),
        ("op", ctypes.c_int),
        ("op_params", ctypes.c_int32 * 16),
        ("flags", ctypes.c_int32),
        ("left", POINTER),
        ("right", POINTER),
        ("others", POINTER * 8),
        ("view_src", POINTER),
        ("view_offs", ctypes.c_size_t),
        ("data", POINTER),
        ("name", ctypes.c_char * 64),
        ("extra", POINTER),
        ("padding", ctypes.c_char * 8),
    ]


def operation(tensor: int, at: int = int(Tensor.op.offset)) -> int:
    """The number of the operation of the tensor at an address; the fastest way to know it."""
    return ctypes.c_int.from_address(tensor + at).value


class _Room(ctypes.Structure):
    """``struct ggml_init_params``"""

    _fields_ = [("size", ctypes.c_size_t), ("buffer", POINTER), ("no_alloc", ctypes.c_bool)]


class Unknown(Exception):
    """The installed ggml is other than this module knows it."""


class Ggml:
    """The library's functions, checked."""

    def __init__(self) -> None:
        """Raises ``Unknown``."""
        llama()  # the backends register themselves
        import llama_cpp._ggml

        self._library = llama_cpp._ggml.libggml
        size, whole = ctypes.c_size_t, ctypes.c_int64
        self.init = self._function("init", POINTER, _Room)
        self.free = self._function("free", None, POINTER)
        self.overhead = int(self._function("tensor_overhead", size)())
        self.graph_overhead = self._function("graph_overhead_custom", size, size, ctypes.c_bool)
        self.matrix = self._function("new_tensor_2d", POINTER, POINTER, ctypes.c_int, whole, whole)
        self.view = self._function("view_2d", POINTER, POINTER, POINTER, whole, whole, size, size)
        self.product = self._function("mul_mat", POINTER, POINTER, POINTER, POINTER)
        self.scale = self._function("scale_inplace", POINTER, POINTER, POINTER, ctypes.c_float)
        self.add = self._function("add_inplace", POINTER, POINTER, POINTER, POINTER)
        self.graph = self._function("new_graph_custom", POINTER, POINTER, size, ctypes.c_bool)
        self.expand = self._function("build_forward_expand", None, POINTER, POINTER)
        self.compute = self._function("backend_graph_compute", ctypes.c_int, POINTER, POINTER)
        self.close = self._function("backend_free", None, POINTER)
        self.products = self._check()
        """The number of the operation that multiplies matrices."""
        self.copies, self.attention = self._others()
        """Those of the operations that copy to another type, and of flash attention."""

    def processor(self, threads: int) -> int:
        """A backend that computes on ``threads`` threads; ``close`` frees it. Raises ``Unknown`` if there is none."""
        device = self._function("backend_dev_by_type", POINTER, ctypes.c_int)(PROCESSOR)
        backend = device and self._function("backend_dev_init", POINTER, POINTER, POINTER)(device, None)
        if not backend:
            raise Unknown("ggml has no backend for the processor.")
        registry = self._function("backend_dev_backend_reg", POINTER, POINTER)(device)
        find = self._function("backend_reg_get_proc_address", POINTER, POINTER, ctypes.c_char_p)
        address = find(registry, b"ggml_backend_set_n_threads")
        if not address:
            raise Unknown("ggml's backend for the processor takes no number of threads.")
        ctypes.CFUNCTYPE(None, POINTER, ctypes.c_int)(address)(backend, threads)
        return int(backend)

    def _function(self, name: str, result: Any, *arguments: Any) -> Any:
        try:
            function = self._library[f"ggml_{name}"]  # a new object, not shared with other modules
        except AttributeError as error:
            raise Unknown(f"ggml has no function ggml_{name}.") from error
        function.restype, function.argtypes = result, list(arguments)
        return function

    def _check(self) -> int:
        """The number of the product; raises ``Unknown`` unless a tensor is laid out as ``Tensor`` says."""
        room = Room(self, 8)
        left, right = room.matrix(16, 5), room.matrix(16, 3)
        self._function("set_name", POINTER, POINTER, ctypes.c_char_p)(left, b"left")
        room.place(left, 4096)
        made = room.tensor(self.product(room.context, left, right))
        one, got = room.tensor(left), self._function("get_data", POINTER, POINTER)(left)
        room.done()
        found = [self.overhead - ctypes.sizeof(Tensor), one.type, one.columns, one.rows, one.ne2, one.ne3]
        found += [one.item, one.stride, one.nb2, one.op, one.data, got, one.name, made.left, made.right, made.columns]
        wanted = [32, F32, 16, 5, 1, 1, 4, 64, 320, NOTHING, 4096, 4096, b"left", left, right, 5]
        if found != wanted or self._name(made) != b"MUL_MAT":
            raise Unknown("A tensor of ggml is laid out in another way.")
        return int(made.op)

    def _others(self) -> tuple[int, int]:
        """The numbers of copies and of flash attention; raises ``Unknown`` unless their operands are where we look."""
        cast = self._function("cast", POINTER, POINTER, POINTER, ctypes.c_int)
        number, none = ctypes.c_float, None
        attend = self._function("flash_attn_ext", POINTER, POINTER, *[POINTER] * 4, number, number, number)
        room = Room(self, 8)
        queries, keys, values = room.matrix(16, 1), room.matrix(16, 4), room.matrix(16, 4)
        copied = room.tensor(cast(room.context, keys, F16))
        attended = room.tensor(attend(room.context, queries, keys, values, none, 1.0, 0.0, 0.0))
        room.done()
        found = [copied.left, copied.type, attended.left, attended.right, attended.others[0]]
        names = self._name(copied), self._name(attended)
        if found != [keys, F16, queries, keys, values] or names != (b"CPY", b"FLASH_ATTN_EXT"):
            raise Unknown("Flash attention of ggml has another form.")
        return int(copied.op), int(attended.op)

    def _name(self, tensor: Tensor) -> bytes:
        """Of a tensor's operation."""
        return bytes(self._function("op_name", ctypes.c_char_p, ctypes.c_int)(tensor.op))


class Room:
    """Memory for ``count`` tensors without data, and for a graph over them."""

    def __init__(self, ggml: Ggml, count: int) -> None:
        self._ggml = ggml
        self._count = count
        size = count * ggml.overhead + ggml.graph_overhead(count, False) + ggml.overhead
        self.words: NDArray[np.uint64] = np.zeros(size // WORD + 2, np.uint64)
        """The memory itself; pointers to data may be written there."""
        start = self.words.ctypes.data
        self._start = start
        start += -start % 16
        self.context = ggml.init(_Room(size, start, True))

    def matrix(self, columns: int, rows: int) -> int:
        """A float32 tensor."""
        return int(self._ggml.matrix(self.context, F32, columns, rows))

    def tensor(self, address: int) -> Tensor:
        """The structure at an address."""
        return Tensor.from_address(address)

    def place(self, tensor: int, data: int) -> None:
        """Let a tensor's data be at an address."""
        Tensor.from_address(tensor).data = data

    def word(self, tensor: int) -> int:
        """Where in ``words`` a tensor's pointer to its data is."""
        return (tensor - self._start + int(Tensor.data.offset)) // WORD

    def graph(self, results: list[int]) -> int:
        """A graph that computes ``results`` one after the other, with all that they need."""
        graph = self._ggml.graph(self.context, self._count, False)
        for result in results:
            self._ggml.expand(graph, result)
        return int(graph)

    def done(self) -> None:
        """No more tensors are made; those that there are stay as long as the object."""
        self._ggml.free(self.context)
        self.context = None


@cache
def ggml() -> Ggml:
    """The installed library. Raises ``Unknown``."""
    return Ggml()
