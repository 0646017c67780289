"""Adapters of several versions in one call of llama.cpp, for which it has no setting.

The context computes only the base and shows us each product W x (``cb_eval`` in llama.h). We add every row's own term:
y += (alpha / r) B (A x). Neighbouring rows of one adapter form a *run*; ggml computes its term with the same
operations, in the same order, as llama.cpp for an adapter of all rows, so the bits are the same.
"""

from __future__ import annotations

import ctypes
import itertools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.gguf import GgufNames
from ...models.weights import linear_shapes, pairs
from ..batching.context import Arrays, DecodeFailed, Handles, Ints
from .native import llama

log = logging.getLogger(__name__)

# --- ggml's tensors and graphs (ggml.h and ggml-backend.h of https://github.com/ggml-org/llama.cpp) ---

F32, F16, NOTHING = 0, 1, 0
"""GGML_TYPE_F32, GGML_TYPE_F16 and GGML_OP_NONE"""
PROCESSOR = 0
"""GGML_BACKEND_DEVICE_TYPE_CPU"""
OPENMP = b"OPENMP = 1"
POINTER = ctypes.c_void_p
WORD, FLOAT = 8, 4
"""Bytes of a pointer, and of a float32."""
TENSORS = 10
"""Most tensors of a graph for each run."""
LAYOUTS = 16
"""Most cached arrangements of rows: decoding repeats the same one."""
SUFFIX = b".weight"
Pointers = NDArray[np.uint64]


class Tensor(ctypes.Structure):
    """``struct ggml_tensor``: sizes with the fastest axis first, and strides in bytes."""

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


OPERATION = int(Tensor.op.offset)


class _Memory(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", POINTER), ("no_alloc", ctypes.c_bool)]


class Unknown(Exception):
    """The installed ggml has another layout than this module expects."""


class OtherForm(Exception):
    """llama.cpp computes in another way than this module expects."""


class Ggml:
    """The library's functions; llama_cpp does not declare them, so the layout of a tensor is checked."""

    def __init__(self) -> None:
        llama()  # the backends register themselves
        import llama_cpp._ggml

        self._library = llama_cpp._ggml.libggml
        size, whole = ctypes.c_size_t, ctypes.c_int64
        self.init = self.function("init", POINTER, _Memory)
        self.free = self.function("free", None, POINTER)
        self.overhead = int(self.function("tensor_overhead", size)())
        self.graph_overhead = self.function("graph_overhead_custom", size, size, ctypes.c_bool)
        self.matrix = self.function("new_tensor_2d", POINTER, POINTER, ctypes.c_int, whole, whole)
        self.view = self.function("view_2d", POINTER, POINTER, POINTER, whole, whole, size, size)
        self.product = self.function("mul_mat", POINTER, POINTER, POINTER, POINTER)
        self.scale = self.function("scale_inplace", POINTER, POINTER, POINTER, ctypes.c_float)
        self.add = self.function("add_inplace", POINTER, POINTER, POINTER, POINTER)
        self.graph = self.function("new_graph_custom", POINTER, POINTER, size, ctypes.c_bool)
        self.expand = self.function("build_forward_expand", None, POINTER, POINTER)
        self.compute = self.function("backend_graph_compute", ctypes.c_int, POINTER, POINTER)
        self.close = self.function("backend_free", None, POINTER)
        self.products = self._check()
        """The number of the operation that multiplies matrices."""
        self.copies, self.attention = self._check_attention()
        """The operations that copy to another type, and flash attention."""

    def processor(self, threads: int) -> int:
        """A backend that computes on ``threads`` threads; ``close`` frees it. Raises ``Unknown`` if there is none."""
        device = self.function("backend_dev_by_type", POINTER, ctypes.c_int)(PROCESSOR)
        backend = device and self.function("backend_dev_init", POINTER, POINTER, POINTER)(device, None)
        registry = device and self.function("backend_dev_backend_reg", POINTER, POINTER)(device)
        find = self.function("backend_reg_get_proc_address", POINTER, POINTER, ctypes.c_char_p)
        address = backend and find(registry, b"ggml_backend_set_n_threads")
        if not address:
            raise Unknown("ggml has no backend for the processor that takes a number of threads.")
        ctypes.CFUNCTYPE(None, POINTER, ctypes.c_int)(address)(backend, threads)
        return int(backend)

    def function(self, name: str, result: Any, *arguments: Any) -> Any:
        try:
            function = self._library[f"ggml_{name}"]  # a new object, not shared with other modules
        except AttributeError as error:
            raise Unknown(f"ggml has no function ggml_{name}.") from error
        function.restype, function.argtypes = result, list(arguments)
        return function

    def _check(self) -> int:
        room = Room(self, 8)
        left, right = room.matrix(16, 5), room.matrix(16, 3)
        self.function("set_name", POINTER, POINTER, ctypes.c_char_p)(left, b"left")
        Tensor.from_address(left).data = 4096
        made = Tensor.from_address(self.product(room.context, left, right))
        named = self.function("op_name", ctypes.c_char_p, ctypes.c_int)(made.op)
        one, data = Tensor.from_address(left), self.function("get_data", POINTER, POINTER)(left)
        found = [self.overhead - ctypes.sizeof(Tensor), one.type, one.columns, one.rows, one.ne2, one.ne3]
        found += [one.item, one.stride, one.nb2, one.data, data, one.name, made.left, made.right, made.columns, named]
        room.done()
        if found != [32, F32, 16, 5, 1, 1, 4, 64, 320, 4096, 4096, b"left", left, right, 5, b"MUL_MAT"]:
            raise Unknown("A tensor of ggml is laid out in another way.")
        return int(made.op)

    def _check_attention(self) -> tuple[int, int]:
        cast = self.function("cast", POINTER, POINTER, POINTER, ctypes.c_int)
        attend = self.function("flash_attn_ext", POINTER, *[POINTER] * 5, *[ctypes.c_float] * 3)
        room = Room(self, 8)
        queries, keys, values = room.matrix(16, 1), room.matrix(16, 4), room.matrix(16, 4)
        copied = Tensor.from_address(cast(room.context, keys, F16))
        attended = Tensor.from_address(attend(room.context, queries, keys, values, None, 1.0, 0.0, 0.0))
        room.done()
        found = [copied.left, copied.type, attended.left, attended.right, attended.others[0]]
        if found != [keys, F16, queries, keys, values]:
            raise Unknown("Flash attention of ggml has another form.")
        return int(copied.op), int(attended.op)


class Room:
    """Memory for ``count`` tensors without data, and for a graph over them."""

    def __init__(self, ggml: Ggml, count: int) -> None:
        self._ggml = ggml
        self._count = count
        size = count * ggml.overhead + ggml.graph_overhead(count, False) + ggml.overhead
        self.words: Pointers = np.zeros(size // WORD + 2, np.uint64)
        """The memory itself; pointers to data may be written there."""
        self._start = int(self.words.ctypes.data)
        self.context = ggml.init(_Memory(size, self._start + -self._start % 16, True))

    def matrix(self, columns: int, rows: int) -> int:
        return int(self._ggml.matrix(self.context, F32, columns, rows))

    def word(self, tensor: int) -> int:
        """The place among ``words`` of the address of a tensor's data."""
        return (tensor - self._start + int(Tensor.data.offset)) // WORD

    def graph(self, results: list[int]) -> int:
        graph = self._ggml.graph(self.context, self._count, False)
        for result in results:
            self._ggml.expand(graph, result)
        return int(graph)

    def done(self) -> None:
        self._ggml.free(self.context)


@cache
def ggml() -> Ggml:
    """The installed library. Raises ``Unknown``."""
    return Ggml()


# --- the terms of a micro-batch ---


@dataclass(frozen=True)
class Adapter:
    """One adapter."""

    matrices: tuple[NDArray[np.float32], ...]
    """A and B of every module, kept alive for ``pointers``."""
    pointers: Pointers
    """Addresses of A and B, (modules, 2), by the numbers of the modules; 0 for unchanged ones."""
    ranks: NDArray[np.int64]
    """(modules,), 0 for unchanged ones."""
    modules: frozenset[int]
    alpha: float

    def scale(self, rank: int) -> float:
        """As in llama.cpp, in float32."""
        return float(np.float32(self.alpha) / np.float32(rank)) if self.alpha else 1.0


Run = tuple[int, int, Adapter]
"""Rows ``begin`` … ``end`` - 1 of a micro-batch, and their adapter."""


class Terms:
    """The terms of all runs for layers of one shape: a graph with tensors that are moved from layer to layer."""

    def __init__(
        self,
        ggml: Ggml,
        inputs: int,
        outputs: int,
        rows: int,
        runs: Sequence[tuple[int, int, int, float]],
        scratch: int,
    ) -> None:
        """``runs`` are (begin, end, rank, scale); ``scratch`` is the address of room for products."""
        self._room = room = Room(ggml, TENSORS * len(runs))
        moved: list[tuple[int, ...]] = []
        starts = []
        for begin, end, rank, scale in runs:
            # a product with one row has other last bits
            lone = end - begin == 1 < rows
            first, last = (begin - (begin > 0), end + (begin == 0)) if lone else (begin, end)
            count = last - first
            x, a, b = room.matrix(inputs, count), room.matrix(inputs, rank), room.matrix(rank, outputs)
            down = ggml.product(room.context, a, x)
            up = ggml.product(room.context, b, down)
            Tensor.from_address(down).data = scratch
            Tensor.from_address(up).data = scratch + FLOAT * rank * count
            term = ggml.scale(room.context, up, scale)
            if lone:
                line = FLOAT * outputs
                term = ggml.view(room.context, term, outputs, 1, line, line * (begin - first))
            y = room.matrix(outputs, end - begin)
            moved.append((a, b, x, y, ggml.add(room.context, y, term)))
            starts.append((FLOAT * inputs * first, FLOAT * outputs * begin, FLOAT * outputs * begin))
        self.graph = room.graph([tensors[-1] for tensors in moved])
        room.done()
        self._words = np.array([[room.word(each) for each in tensors] for tensors in moved])
        self._starts = np.array(starts, np.uint64)

    def addresses(self, matrices: Pointers, inputs: int, outputs: int) -> Pointers:
        """The argument of ``move`` for a layer with these ``matrices`` (runs, 2), all data addresses."""
        return np.concatenate([matrices, self._starts + np.array([inputs, outputs, outputs], np.uint64)], 1)

    def move(self, addresses: Pointers) -> None:
        self._room.words[self._words] = addresses


class Layout:
    """The adapters of the rows of a micro-batch."""

    def __init__(self, ggml: Ggml, scratch: int, rows: int, runs: Sequence[Run]) -> None:
        self.rows = rows
        self._ggml = ggml
        self._scratch = scratch
        self._runs = runs
        self._pointers = np.stack([adapter.pointers for *_, adapter in runs], 1)
        self._ranks = np.stack([adapter.ranks for *_, adapter in runs], 1)
        self._layers: dict[int, tuple[int, int, Terms, Pointers]] = {}
        """The terms of a module with their addresses, as long as its input and output keep theirs."""
        self._terms: dict[tuple[int, int, bytes], Terms] = {}
        """By the shapes of layers, and the ranks of the adapters."""

    def terms(self, number: int, inputs: Tensor, result: Tensor) -> Terms | None:
        """The terms to add to a module's ``result``, or None if no adapter changes it. Raises ``OtherForm``."""
        x, y, ranks = inputs.data, result.data, self._ranks[number]
        layer = self._layers.get(number)
        if layer is None or layer[:2] != (x, y):
            if not ranks.any():
                return None
            for tensor in (inputs, result):
                if tensor.type != F32 or tensor.stride != FLOAT * tensor.columns or tensor.rows != self.rows:
                    raise OtherForm("llama.cpp computes a layer in another form")
            key = inputs.columns, result.columns, ranks.tobytes()
            if key not in self._terms:
                runs = [
                    (begin, end, rank, adapter.scale(rank))
                    for (begin, end, adapter), rank in zip(self._runs, ranks.tolist(), strict=True)
                    if rank
                ]
                self._terms[key] = Terms(self._ggml, *key[:2], self.rows, runs, self._scratch)
            terms = self._terms[key]
            layer = x, y, terms, terms.addresses(self._pointers[number][ranks > 0], x, y)
            self._layers[number] = layer
        layer[2].move(layer[3])
        return layer[2]


def micro_batches(sequences: Ints, most: int) -> Iterator[slice]:
    """The rows of each micro-batch that llama.cpp makes of one token for each of ``sequences``.

    They are ascending: consecutive ids, ``most`` at a time.
    """
    edges = [0, *(np.flatnonzero(np.diff(sequences) != 1) + 1).tolist(), len(sequences)]
    for begin, end in itertools.pairwise(edges):
        for first in range(begin, end, most):
            yield slice(first, min(first + most, end))


# --- the callback of a context ---


def past_casts(ggml: Ggml, attention: int) -> None:
    """Let the flash attention at this address read keys and values in float32, as stored.

    llama.cpp casts them to float16 first (``build_attn_mha``), although ggml's kernel takes both. A reused graph keeps
    the change. Raises ``OtherForm`` if neither float32 nor a cast from it is there.
    """
    for place in (int(Tensor.right.offset), int(Tensor.others.offset)):
        source = ctypes.c_size_t.from_address(attention + place)
        cast = Tensor.from_address(source.value)
        if cast.type == F32:
            continue
        if cast.op != ggml.copies or Tensor.from_address(cast.left).type != F32:
            raise OtherForm("llama.cpp computes attention in another form")
        source.value = cast.left
        cast.op = NOTHING


def mixing(library: Any, names: GgufNames, threads: int, rows: int, mixes: bool, floats: bool) -> Mixing | None:
    """For a context of ``library``, llama.cpp, on the processor, with micro-batches of at most ``rows`` rows.

    ``floats``: flash attention in float32, for which llama.cpp has no setting. None if nothing is to be changed, or
    ggml is unknown. Without OpenMP the library would start its threads again for each layer, so nothing ``mixes``.
    """
    mixes = mixes and (threads == 1 or OPENMP in library.llama_print_system_info())
    if not (mixes or floats):
        return None
    try:
        return Mixing(library, ggml(), names, threads, rows, mixes, floats)
    except Unknown as error:
        log.warning("llama.cpp computes more slowly than it could: %s", error)
        return None


class Mixing:
    """All adapters of one context."""

    def __init__(
        self, library: Any, ggml: Ggml, names: GgufNames, threads: int, rows: int, mixes: bool, floats: bool
    ) -> None:
        """``rows`` is the most rows of a micro-batch. Raises ``Unknown``."""
        self.mixes, self.floats = mixes, floats
        self.callback = library.ggml_backend_sched_eval_callback(self._called)
        self._ggml = ggml
        self._names = names
        self._most = rows
        self._processor = ggml.processor(threads)
        modules = (names.module(module).encode() + SUFFIX for module in linear_shapes(names.config))
        self._numbers = {name: number for number, name in enumerate(modules)}
        """Numbers of the modules, by the names of their weights."""
        self._weights: dict[int, int] = {}
        """Numbers of the modules by the addresses of their weights, -1 for others."""
        self._adapters: dict[int, Adapter] = {}
        self._handles = itertools.count(1)
        self._layouts: dict[tuple[bytes, int], Layout] = {}
        self._scratch = np.empty(0, np.float32)
        self._parts: list[Handles] = []
        """The adapters of the rows of each micro-batch of this call."""
        self._same = False
        """True if all rows have the same; then there is one part, with one adapter."""
        self._shown: list[set[int]] = []
        """The modules that each micro-batch has computed so far."""
        self._error: BaseException | None = None

    def add(self, adapter: Arrays, alpha: float) -> int:
        matrices: list[NDArray[np.float32]] = []
        pointers, ranks = np.zeros((len(self._numbers), 2), np.uint64), np.zeros(len(self._numbers), np.int64)
        widest = 0
        for module, a, b in pairs(adapter):
            own = [np.array(each, np.float32, order="C") for each in (a, self._names.rows(module, b))]
            number = self._numbers[self._names.module(module).encode() + SUFFIX]
            pointers[number], ranks[number] = [each.ctypes.data for each in own], len(a)
            widest = max(widest, len(a) + len(b))
            matrices += own
        if len(self._scratch) < widest * self._most:
            self._layouts.clear()
            self._scratch = np.empty(widest * self._most, np.float32)
        handle = next(self._handles)
        self._adapters[handle] = Adapter(
            tuple(matrices), pointers, ranks, frozenset(np.flatnonzero(ranks).tolist()), alpha
        )
        return handle

    def remove(self, adapter: int) -> None:
        del self._adapters[adapter]
        self._layouts.clear()

    def close(self) -> None:
        """Free everything; the context must be gone."""
        self._layouts.clear()
        self._adapters.clear()
        self._ggml.close(self._processor)

    def begin(self, adapters: Handles, sequences: Ints) -> None:
        """The next call of llama.cpp has rows of these ``sequences``, (n,).

        ``adapters``: (n,), (1,) for all rows, or (0,) for none.
        """
        self._error, self._shown, self._parts = None, [], []
        self._same = len(adapters) > 0 and bool((adapters == adapters[0]).all())
        if self._same:
            self._parts = [adapters[:1]]
        elif len(adapters):
            self._parts = [adapters[rows] for rows in micro_batches(sequences, self._most)]

    def end(self) -> None:
        """Raise what went wrong since ``begin``: ``MemoryError``, or ``DecodeFailed``."""
        error: BaseException | None = self._error
        if error is None and self._parts:
            parts = self._parts * max(len(self._shown), 1) if self._same else self._parts
            changed = [
                frozenset[int]().union(*(self._adapters[each].modules for each in set(part.tolist()))) for part in parts
            ]
            if len(changed) != max(len(self._shown), 1):
                error = OtherForm(f"llama.cpp made {len(self._shown)} micro-batches instead of {len(parts)}")
            elif not all(map(frozenset.issubset, changed, self._shown or [set()])):
                error = OtherForm("llama.cpp's graph lacks layers that they change")
        if isinstance(error, MemoryError):
            raise error
        if error is not None:
            raise DecodeFailed(f"llama.cpp did not compute what was asked for: {error}.") from error

    def _called(self, address: int, ask: bool, _: object) -> bool:
        """The ``ggml_backend_sched_eval_callback``: first asks if we want to see a tensor, then shows it.

        All tensors up to the next wanted one are asked about before any of them is computed.
        """
        if self._error is not None:
            return False
        try:
            if not ask:
                self._show(Tensor.from_address(address))
                return True
            kind = ctypes.c_int.from_address(address + OPERATION).value
            if kind == self._ggml.products and self._parts:
                return self._number(Tensor.from_address(address).left) >= 0
            if kind == self._ggml.attention and self.floats:
                past_casts(self._ggml, address)
            return False
        except BaseException as error:  # it must not go through C
            self._error = error
            return False

    def _number(self, weight: int) -> int:
        if weight not in self._weights:
            self._weights[weight] = self._numbers.get(Tensor.from_address(weight).name, -1)
        return self._weights[weight]

    def _show(self, result: Tensor) -> None:
        """Add the adapters' terms to a product. Raises ``OtherForm`` if it is not as expected."""
        number = self._weights[result.left]
        if not self._shown or number in self._shown[-1]:  # the next micro-batch has begun
            self._shown.append(set())
        self._shown[-1].add(number)
        if not result.rows:  # no row of a long prompt's part is requested
            return
        terms = self._layout(result.rows).terms(number, Tensor.from_address(result.right), result)
        if terms is not None and (code := self._ggml.compute(self._processor, terms.graph)):
            raise OtherForm(f"ggml failed with code {code}")

    def _layout(self, rows: int) -> Layout:
        if not self._same and len(self._shown) > len(self._parts):
            raise OtherForm(f"llama.cpp made more than {len(self._parts)} micro-batches")
        part = self._parts[0 if self._same else len(self._shown) - 1]
        if rows != len(part) and not self._same:
            raise OtherForm(f"llama.cpp made a micro-batch of {rows} rows instead of {len(part)}")
        key = part.tobytes(), rows
        if key not in self._layouts:
            if len(self._layouts) >= LAYOUTS:
                self._layouts.clear()
            edges = [0, *(np.flatnonzero(np.diff(part)) + 1).tolist(), rows]
            runs = [(begin, end, self._adapters[int(part[begin])]) for begin, end in itertools.pairwise(edges)]
            self._layouts[key] = Layout(self._ggml, int(self._scratch.ctypes.data), rows, runs)
        return self._layouts[key]
