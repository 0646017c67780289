"""Adapters of several versions in one call of llama.cpp: tensors of its graph are replaced."""

from __future__ import annotations

import ctypes
import itertools
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...models.gguf import GgufNames
from ...models.weights import linear_shapes, pairs
from ..batching.context import Arrays, Handles, Ints
from .native import llama

# Bindings of ggml's tensors and graphs (ggml.h and ggml-backend.h of https://github.com/ggml-org/llama.cpp).
#
# llama_cpp does not declare them, so ``ggml`` checks the layout of a tensor against the installed library.

F32, F16 = 0, 1
"""GGML_TYPE_F32 and GGML_TYPE_F16"""
NOTHING = 0
"""GGML_OP_NONE: a tensor without an operation."""
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
    """The number of the operation of the tensor at an address; the fastest way to read it."""
    return ctypes.c_int.from_address(tensor + at).value


class _Room(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("buffer", POINTER), ("no_alloc", ctypes.c_bool)]


class Unknown(Exception):
    """The installed ggml has another layout than this module expects."""


class Ggml:
    """The library's functions, checked."""

    def __init__(self) -> None:
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
        """The operations that copy to another type, and flash attention."""

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
        return int(self._ggml.matrix(self.context, F32, columns, rows))

    def tensor(self, address: int) -> Tensor:
        return Tensor.from_address(address)

    def place(self, tensor: int, data: int) -> None:
        Tensor.from_address(tensor).data = data

    def word(self, tensor: int) -> int:
        return (tensor - self._start + int(Tensor.data.offset)) // WORD

    def graph(self, results: list[int]) -> int:
        graph = self._ggml.graph(self.context, self._count, False)
        for result in results:
            self._ggml.expand(graph, result)
        return int(graph)

    def done(self) -> None:
        self._ggml.free(self.context)
        self.context = None


@cache
def ggml() -> Ggml:
    """The installed library. Raises ``Unknown``."""
    return Ggml()


# The low-rank terms of the rows of a micro-batch, each under its own adapter: y += (alpha / r) B (A x).
#
# Neighbouring rows of one adapter form a *run*. ggml computes its term with the same operations, in the same order, as
# llama.cpp for an adapter of all rows, so the bits are the same.

FLOAT = 4
GRAPHS = 256
"""Cached graphs; one for 8 adapters takes 30 KB."""
TENSORS = 10
"""Most tensors of a graph for each run."""
Pointers = NDArray[np.uint64]


class OtherForm(Exception):
    """llama.cpp computes in another way than this module expects."""


@dataclass(frozen=True)
class Run:
    """Rows ``begin`` … ``end`` - 1 of a micro-batch, all of one adapter."""

    begin: int
    end: int
    adapter: int


def runs(adapters: Handles) -> list[Run]:
    """The runs of rows with the adapter handles (n,)."""
    edges = [0, *(np.flatnonzero(np.diff(adapters)) + 1).tolist(), len(adapters)]
    return [Run(begin, end, int(adapters[begin])) for begin, end in itertools.pairwise(edges)]


@dataclass(frozen=True)
class Part:
    """A run as a layer sees it, independent of its matrices."""

    begin: int
    end: int
    rank: int
    scale: float


def window(run: Run | Part, rows: int) -> tuple[int, int]:
    """The rows of a run's products: at least two, because a product with one row has other last bits."""
    if run.end - run.begin > 1 or rows == 1:
        return run.begin, run.end
    return (run.begin - 1, run.end) if run.begin else (run.begin, run.end + 1)


def micro_batches(sequences: Ints, most: int) -> Iterator[slice]:
    """The rows of each micro-batch that llama.cpp makes of one token for each of ``sequences``.

    They are ascending: consecutive ids, ``most`` at a time.
    """
    edges = [0, *(np.flatnonzero(np.diff(sequences) != 1) + 1).tolist(), len(sequences)]
    for begin, end in itertools.pairwise(edges):
        for first in range(begin, end, most):
            yield slice(first, min(first + most, end))


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


class Terms:
    """The terms of all runs for layers of one shape: a graph with tensors that are moved from layer to layer."""

    def __init__(self, ggml: Ggml, inputs: int, outputs: int, rows: int, own: Sequence[Part], scratch: int) -> None:
        """``own`` are the runs among ``rows`` rows; ``scratch`` is the address of room for products."""
        self._room = room = Room(ggml, TENSORS * len(own))
        matrices: list[list[int]] = [[], [], [], []]
        results = []
        for run in own:
            begin, end = window(run, rows)
            count, rank = end - begin, run.rank
            x, a, b = room.matrix(inputs, count), room.matrix(inputs, rank), room.matrix(rank, outputs)
            down = ggml.product(room.context, a, x)
            room.place(down, scratch)
            up = ggml.product(room.context, b, down)
            room.place(up, scratch + FLOAT * rank * count)
            term = ggml.scale(room.context, up, run.scale)
            lines = run.end - run.begin
            if lines < count:
                line = FLOAT * outputs
                term = ggml.view(room.context, term, outputs, lines, line, line * (run.begin - begin))
            y = room.matrix(outputs, lines)
            z = ggml.add(room.context, y, term)
            for group, tensor in zip(matrices, (a, b, x, y), strict=True):
                group.append(tensor)
            results.append(z)
        self.graph = room.graph(results)
        room.done()
        self._words = np.array([room.word(each) for group in (*matrices, results) for each in group])
        of_inputs = [FLOAT * inputs * window(run, rows)[0] for run in own]
        of_outputs = [FLOAT * outputs * run.begin for run in own]
        self._starts = np.array([of_inputs, of_outputs, of_outputs], np.uint64)

    def addresses(self, matrices: Pointers, inputs: int, outputs: int) -> Pointers:
        """The argument of ``move`` for a layer with these ``matrices`` (runs, 2), all data addresses."""
        of_rows = self._starts + np.array([[inputs], [outputs], [outputs]], np.uint64)
        return np.concatenate([matrices.T.ravel(), of_rows.ravel()])

    def move(self, addresses: Pointers) -> None:
        self._room.words[self._words] = addresses


class Graphs:
    """Caches recent graphs. Making one takes longer than computing it."""

    def __init__(self, ggml: Ggml, scratch: int) -> None:
        """``scratch`` is the address of room for products."""
        self._ggml = ggml
        self._scratch = scratch
        self._made: OrderedDict[tuple[int, int, int, tuple[Part, ...]], Terms] = OrderedDict()

    def of(self, inputs: int, outputs: int, rows: int, own: tuple[Part, ...]) -> Terms:
        key = inputs, outputs, rows, own
        terms = self._made.get(key)
        if terms is None:
            terms = self._made[key] = Terms(self._ggml, inputs, outputs, rows, own, self._scratch)
            while len(self._made) > GRAPHS:
                self._made.popitem(last=False)
        self._made.move_to_end(key)
        return terms


@dataclass(frozen=True)
class Layer:
    """The terms of a module, as long as its input and output keep their addresses."""

    terms: Terms
    inputs: int
    outputs: int
    addresses: Pointers


class Layout:
    """The adapters of the rows of a micro-batch."""

    def __init__(self, graphs: Graphs, rows: int, own: Sequence[tuple[Run, Adapter]]) -> None:
        self.rows = rows
        self._graphs = graphs
        self._own = own
        self._pointers = np.stack([adapter.pointers for _, adapter in own], 1)
        self._ranks = np.stack([adapter.ranks for _, adapter in own], 1)
        self.modules = frozenset(np.flatnonzero(self._ranks.any(1)).tolist())
        """The numbers of the modules that any of the adapters changes."""
        self._layers: dict[int, Layer] = {}
        self._terms: dict[tuple[int, int, bytes], Terms] = {}
        """By the shapes of layers, and the ranks of the adapters."""

    def terms(self, number: int, inputs: Tensor, result: Tensor) -> Terms | None:
        """The terms to add to a module's ``result``, or None if no adapter changes it.

        Raises ``OtherForm`` if the tensors are not as expected.
        """
        if number not in self.modules:
            return None
        layer, x, y = self._layers.get(number), inputs.data, result.data
        if layer is None or layer.inputs != x or layer.outputs != y:
            for tensor in (inputs, result):
                if tensor.type != F32 or tensor.stride != FLOAT * tensor.columns or tensor.rows != self.rows:
                    raise OtherForm("llama.cpp computes a layer in another form")
            terms = self._terms_of(number, inputs.columns, result.columns)
            used = self._ranks[number] > 0
            layer = Layer(terms, x, y, terms.addresses(self._pointers[number][used], x, y))
            self._layers[number] = layer
        layer.terms.move(layer.addresses)
        return layer.terms

    def _terms_of(self, number: int, inputs: int, outputs: int) -> Terms:
        ranks = self._ranks[number]
        key = (inputs, outputs, ranks.tobytes())
        terms = self._terms.get(key)
        if terms is None:
            own = tuple(
                Part(run.begin, run.end, rank, _scale(adapter.alpha, rank))
                for (run, adapter), rank in zip(self._own, ranks.tolist(), strict=True)
                if rank
            )
            terms = self._terms[key] = self._graphs.of(inputs, outputs, self.rows, own)
        return terms


def _scale(alpha: float, rank: int) -> float:
    """As in llama.cpp, in float32."""
    return float(np.float32(alpha) / np.float32(rank)) if alpha else 1.0


# Rows of several adapters in one call of llama.cpp.
#
# The context computes only the base, and shows us each product W x (``watch``); we add every row's own term in place.

LAYOUTS = 16
"""Most cached arrangements of rows: decoding repeats the same one."""
SUFFIX = b".weight"


class Mixing:
    """All adapters of one context."""

    def __init__(self, ggml: Ggml, names: GgufNames, threads: int, rows: int) -> None:
        """``rows`` is the most rows of a micro-batch. Raises ``Unknown``."""
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
        self._last = 0
        self._layouts: dict[bytes | tuple[int, int], Layout] = {}
        self._scratch = np.empty(0, np.float32)
        self._graphs = Graphs(ggml, 0)
        self._parts: list[Handles] = []
        """The adapters of the rows of each micro-batch of this call, if there are several."""
        self._keys: list[bytes] = []
        self._one: int | None = None
        """The adapter of all rows, if there is only one."""
        self._part = 0
        self._seen: set[int] = set()

    # adapters

    def add(self, adapter: Arrays, alpha: float) -> int:
        matrices: list[NDArray[np.float32]] = []
        pointers, ranks = np.zeros((len(self._numbers), 2), np.uint64), np.zeros(len(self._numbers), np.int64)
        widest = 0
        for module, a, b in pairs(adapter):
            own = [np.array(each, np.float32, order="C") for each in (a, self._names.rows(module, b))]
            number = self._numbers[self._names.module(module).encode() + SUFFIX]
            pointers[number] = [each.ctypes.data for each in own]
            ranks[number] = len(a)
            widest = max(widest, len(a) + len(b))
            matrices += own
        modules = frozenset(np.flatnonzero(ranks).tolist())
        if len(self._scratch) < widest * self._most:
            self._layouts.clear()
            self._scratch = np.empty(widest * self._most, np.float32)
            self._graphs = Graphs(self._ggml, int(self._scratch.ctypes.data))
        self._last += 1
        self._adapters[self._last] = Adapter(tuple(matrices), pointers, ranks, modules, alpha)
        return self._last

    def remove(self, adapter: int) -> None:
        del self._adapters[adapter]
        self._layouts.clear()

    def close(self) -> None:
        """Free everything; the context must be gone."""
        self._layouts.clear()
        self._adapters.clear()
        self._ggml.close(self._processor)

    # calls

    def begin(self, adapters: Handles, sequences: Ints) -> None:
        """The next call of llama.cpp has rows of these ``sequences``, (n,).

        ``adapters``: (n,), (1,) for all rows, or (0,) for none.
        """
        self._part, self._seen = 0, set()
        self._one, self._parts = None, []
        if len(adapters) and (adapters == adapters[0]).all():
            self._one = int(adapters[0])
        elif len(adapters):
            self._parts = [adapters[rows] for rows in micro_batches(sequences, self._most)]
            self._keys = [part.tobytes() for part in self._parts]

    def lacking(self) -> Exception | None:
        return self._missing() or self._short() if self._one is not None or self._parts else None

    def _missing(self) -> Exception | None:
        adapters = {self._one} if self._one is not None else set(self._parts[self._part].tolist())
        if all(self._adapters[adapter].modules <= self._seen for adapter in adapters if adapter is not None):
            return None
        return OtherForm("llama.cpp's graph lacks layers that they change")

    def _short(self) -> Exception | None:
        if self._parts and self._part != len(self._parts) - 1:
            return OtherForm(f"llama.cpp made {self._part + 1} micro-batches instead of {len(self._parts)}")
        return None

    def asks(self, tensor: Tensor) -> bool:
        number = self._weights.get(tensor.left)
        if number is None:
            number = self._numbers.get(Tensor.from_address(tensor.left).name, -1)
            self._weights[tensor.left] = number
        return number >= 0 and (self._one is not None or bool(self._parts))

    def show(self, result: Tensor) -> None:
        """Add the adapters' terms to a product. Raises ``OtherForm`` if it is not as expected."""
        number = self._weights[result.left]
        if number in self._seen:  # the next micro-batch has begun
            if error := self._missing():
                raise error
            self._seen.clear()
            self._part += 1
            if self._parts and self._part == len(self._parts):
                raise OtherForm(f"llama.cpp made more than {self._part} micro-batches")
        self._seen.add(number)
        if not result.rows:  # no row of a long prompt's part is requested
            return
        terms = self._layout(result.rows).terms(number, Tensor.from_address(result.right), result)
        if terms is not None and (code := self._ggml.compute(self._processor, terms.graph)):
            raise OtherForm(f"ggml failed with code {code}")

    def _layout(self, rows: int) -> Layout:
        if self._one is not None:
            key: bytes | tuple[int, int] = (self._one, rows)
        else:
            key = self._keys[self._part]
        layout = self._layouts.get(key)
        if layout is None:
            own = [Run(0, rows, self._one)] if self._one is not None else runs(self._parts[self._part])
            if len(self._layouts) >= LAYOUTS:
                self._layouts.clear()
            places = [(run, self._adapters[run.adapter]) for run in own]
            layout = Layout(self._graphs, own[-1].end, places)
            self._layouts[key] = layout
        if layout.rows != rows:
            raise OtherForm(f"llama.cpp made a micro-batch of {rows} rows instead of {layout.rows}")
        return layout


# Flash attention in float32, for which llama.cpp has no setting.
#
# Its graphs cast float32 keys and values to float16 before flash attention (``build_attn_mha`` in llama-graph.cpp),
# although ggml's kernel takes both (``ggml_compute_forward_flash_attn_ext`` in ggml-cpu). So each new graph is changed
# to skip its casts. Attention without flash reads full blocks of 256 tokens of each sequence.

KEYS, VALUES = int(Tensor.right.offset), int(Tensor.others.offset)
"""Offsets of the addresses of an attention's keys and values, after its queries."""


def past_casts(ggml: Ggml, attention: int) -> None:
    """Let the flash attention at this address read keys and values in float32, as stored.

    A reused graph keeps the change. Raises ``OtherForm`` if neither float32 nor a cast from it is there.
    """
    for place in (KEYS, VALUES):
        source = ctypes.c_size_t.from_address(attention + place)
        if ctypes.c_int.from_address(source.value).value == F32:
            continue
        cast = Tensor.from_address(source.value)
        if cast.op != ggml.copies or Tensor.from_address(cast.left).type != F32:
            raise OtherForm("llama.cpp computes attention in another form")
        source.value = cast.left
        cast.op = NOTHING
