"""Adapters of several versions in one call of llama.cpp, for which it has no setting.

The context shows us each of the base's products (``cb_eval`` in llama.h). We add y += (alpha / r) B (A x) per row.
Neighbouring rows of one adapter form a *run*. ggml's operations and order are llama.cpp's, so the bits are, too.
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


F32 = 0
"""GGML_TYPE_F32 in https://github.com/ggml-org/llama.cpp, ggml.h"""
PROCESSOR = 0
"""GGML_BACKEND_DEVICE_TYPE_CPU in ggml-backend.h"""
OPENMP = b"OPENMP = 1"
POINTER = ctypes.c_void_p
WORD, FLOAT = 8, 4
TENSORS = 10
LAYOUTS = 16
"""Cached arrangements of rows: decoding repeats one."""
GRAPHS = 256
"""Cached graphs: making one takes longer than computing it."""
SUFFIX = b".weight"
Pointers = NDArray[np.uint64]


class Tensor(ctypes.Structure):
    """``struct ggml_tensor``: fastest axis first, strides in bytes."""

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
    """The installed ggml has an unexpected layout."""


class OtherForm(Exception):
    """llama.cpp computes in an unexpected way."""


class Ggml:
    """The library; llama_cpp does not declare it, so a tensor's layout is checked."""

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

    def processor(self, threads: int) -> int:
        """``close`` frees it. Raises ``Unknown`` without one."""
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


class Room:
    """``count`` tensors without data, and a graph over them."""

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
        """Index in ``words`` of its data address."""
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


@dataclass(frozen=True)
class Adapter:
    """One adapter."""

    matrices: tuple[NDArray[np.float32], ...]
    """Kept alive for ``pointers``."""
    pointers: Pointers
    """Of A and B, (modules, 2); 0: unchanged."""
    ranks: NDArray[np.int64]
    """(modules,); 0: unchanged."""
    modules: frozenset[int]
    alpha: float

    def scale(self, rank: int) -> float:
        """As in llama.cpp, in float32."""
        return float(np.float32(self.alpha) / np.float32(rank)) if self.alpha else 1.0


Run = tuple[int, int, Adapter]
"""Rows ``begin`` … ``end`` - 1, and their adapter."""
Shape = tuple[int, int, int, tuple[tuple[int, int, int, float], ...]]
"""Inputs, outputs, rows, and runs as ``Terms`` takes them."""


def window(begin: int, end: int, rows: int) -> tuple[int, int]:
    """The rows of a run's products: two or more, because a product with one row has other last bits."""
    lone = end - begin == 1 < rows
    return (begin - (begin > 0), end + (begin == 0)) if lone else (begin, end)


class Terms:
    """Terms for layers of one shape: a graph moved between layers."""

    def __init__(
        self,
        ggml: Ggml,
        inputs: int,
        outputs: int,
        rows: int,
        runs: Sequence[tuple[int, int, int, float]],
        scratch: int,
    ) -> None:
        """``runs``: (begin, end, rank, scale); ``scratch``: address for products."""
        self._room = room = Room(ggml, TENSORS * len(runs))
        moved: list[tuple[int, ...]] = []
        starts = []
        for begin, end, rank, scale in runs:
            first, last = window(begin, end, rows)
            count = last - first
            x, a, b = room.matrix(inputs, count), room.matrix(inputs, rank), room.matrix(rank, outputs)
            down = ggml.product(room.context, a, x)
            up = ggml.product(room.context, b, down)
            Tensor.from_address(down).data = scratch
            Tensor.from_address(up).data = scratch + FLOAT * rank * count
            term = ggml.scale(room.context, up, scale)
            if count > end - begin:
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
        """Of a layer with ``matrices`` (runs, 2), for ``move``."""
        return np.concatenate([matrices, self._starts + np.array([inputs, outputs, outputs], np.uint64)], 1)

    def move(self, addresses: Pointers) -> None:
        self._room.words[self._words] = addresses


class Layout:
    """The adapters of a micro-batch's rows."""

    def __init__(self, ggml: Ggml, graphs: dict[Shape, Terms], scratch: int, rows: int, runs: Sequence[Run]) -> None:
        """``graphs``: those of all layouts."""
        self.rows = rows
        self._graphs = graphs
        self._ggml = ggml
        self._scratch = scratch
        self._runs = runs
        self._pointers = np.stack([adapter.pointers for *_, adapter in runs], 1)
        self._ranks = np.stack([adapter.ranks for *_, adapter in runs], 1)
        self._layers: dict[int, tuple[int, int, Terms, Pointers]] = {}
        """The terms of a module with their addresses, as long as its input and output keep theirs."""

    def terms(self, number: int, inputs: Tensor, result: Tensor) -> Terms | None:
        """None: no adapter changes it. Raises ``OtherForm``."""
        x, y, ranks = inputs.data, result.data, self._ranks[number]
        layer = self._layers.get(number)
        if layer is None or layer[:2] != (x, y):
            if not ranks.any():
                return None
            for tensor in (inputs, result):
                if tensor.type != F32 or tensor.stride != FLOAT * tensor.columns or tensor.rows != self.rows:
                    raise OtherForm("llama.cpp computes a layer in another form")
            terms = self._graph(inputs.columns, result.columns, ranks.tolist())
            layer = self._layers[number] = x, y, terms, terms.addresses(self._pointers[number][ranks > 0], x, y)
        layer[2].move(layer[3])
        return layer[2]

    def _graph(self, inputs: int, outputs: int, ranks: Sequence[int]) -> Terms:
        runs = tuple(
            (begin, end, rank, adapter.scale(rank))
            for (begin, end, adapter), rank in zip(self._runs, ranks, strict=True)
            if rank
        )
        shape = inputs, outputs, self.rows, runs
        if shape not in self._graphs:
            if len(self._graphs) >= GRAPHS:
                del self._graphs[next(iter(self._graphs))]
            self._graphs[shape] = Terms(self._ggml, *shape, self._scratch)
        return self._graphs[shape]


def micro_batches(sequences: Ints, most: int) -> Iterator[slice]:
    """llama.cpp's micro-batches for one token per sequence.

    Ascending: consecutive ids, ``most`` at a time.
    """
    edges = [0, *(np.flatnonzero(np.diff(sequences) != 1) + 1).tolist(), len(sequences)]
    for begin, end in itertools.pairwise(edges):
        for first in range(begin, end, most):
            yield slice(first, min(first + most, end))


def mixing(library: Any, names: GgufNames, threads: int, rows: int) -> Mixing | None:
    """For a llama.cpp context on the processor, with micro-batches of at most ``rows`` rows.

    None: ggml is unknown, or without OpenMP, as each layer would start threads again.
    """
    if threads > 1 and OPENMP not in library.llama_print_system_info():
        return None
    try:
        return Mixing(library, ggml(), names, threads, rows)
    except Unknown as error:
        log.warning("llama.cpp computes more slowly than it could: %s", error)
        return None


class Mixing:
    """All adapters of one context."""

    def __init__(self, library: Any, ggml: Ggml, names: GgufNames, threads: int, rows: int) -> None:
        """Raises ``Unknown``."""
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
        self._graphs: dict[Shape, Terms] = {}
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
            self._graphs.clear()
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
        """The context must be gone."""
        self._layouts.clear()
        self._graphs.clear()
        self._adapters.clear()
        self._ggml.close(self._processor)

    def begin(self, adapters: Handles, sequences: Ints) -> None:
        """For a call's ``sequences``, (n,). ``adapters``: (n,); (1,): one for all; (0,): none."""
        self._error, self._shown, self._parts = None, [], []
        self._same = len(adapters) > 0 and bool((adapters == adapters[0]).all())
        if self._same:
            self._parts = [adapters[:1]]
        elif len(adapters):
            self._parts = [adapters[rows] for rows in micro_batches(sequences, self._most)]

    def end(self) -> None:
        """Raises ``MemoryError`` or ``DecodeFailed`` since ``begin``."""
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
        """``ggml_backend_sched_eval_callback``. It asks about all tensors up to the next wanted one before it computes
        any."""
        if self._error is not None:
            return False
        try:
            if not ask:
                self._show(Tensor.from_address(address))
                return True
            kind = ctypes.c_int.from_address(address + OPERATION).value
            if kind == self._ggml.products and self._parts:
                return self._number(Tensor.from_address(address).left) >= 0
            return False
        except BaseException as error:  # it must not go through C
            self._error = error
            return False

    def _number(self, weight: int) -> int:
        if weight not in self._weights:
            self._weights[weight] = self._numbers.get(Tensor.from_address(weight).name, -1)
        return self._weights[weight]

    def _show(self, result: Tensor) -> None:
        """Raises ``OtherForm`` for an unexpected product."""
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
            self._layouts[key] = Layout(self._ggml, self._graphs, int(self._scratch.ctypes.data), rows, runs)
        return self._layouts[key]
