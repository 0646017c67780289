"""One llama.cpp context over all conversations of a base."""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...devices.limits import available_memory
from ...errors import AdapterError, BaseModelError
from ...models.gguf import GgufNames, adapter_in_memory
from ...models.memory import MICRO_BATCH, key_value_bytes, padded_length
from ..batching.context import Arrays, Context, DecodeFailed, Handles, Ints, Logits
from .mixing import mixing
from .native import last_errors, llama

F32, F16 = 0, 1
"""GGML_TYPE_F32 and GGML_TYPE_F16 in ggml.h"""
AUTO, OFF, ON = -1, 0, 1
"""LLAMA_FLASH_ATTN_TYPE_… in llama.h; AUTO uses it if the card's backend can."""
FREE = 0.7
"""Of free memory for further sequences, unless needed."""
BRIDGE = 4
"""Unused sequences computed to avoid splitting a micro-batch, which reads all weights again."""


def give_back() -> None:
    """Return memory to the system: glibc would keep the gaps."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


def rows_with_fillers(active: Ints) -> Ints:
    """A call's sequences for ``active`` (sorted): fills small holes, gives single ones their twin.

    llama.cpp makes micro-batches of consecutive sequences; for a single row its kernel has other last bits.
    """
    holes = np.diff(active) - 1
    fillers = [
        np.arange(active[i] + 1, active[i + 1], dtype=np.int32) for i in np.flatnonzero(holes) if holes[i] <= BRIDGE
    ]
    rows = np.union1d(active, np.concatenate(fillers)) if fillers else active
    steps = np.diff(rows, prepend=-2, append=rows[-1:] + 2)
    lone = rows[(steps[:-1] > 1) & (steps[1:] > 1)]
    return np.union1d(rows, lone ^ 1) if len(lone) else rows


class NoRoom(BaseModelError):
    """A context of that size could not be allocated."""


class LlamaContext(Context):
    """llama.cpp writes all memory of a context at once, so it starts small; larger ones take over."""

    joins = False
    rows = 256

    def __init__(
        self,
        model: Any,
        names: GgufNames,
        sequences: int,
        length: int,
        threads: int = 1,
        exact: bool = False,
        card: bool = False,
        mixes: bool = False,
        first: int = 0,
        half: bool = False,
    ) -> None:
        """Take over ``model`` (see ``load_model``), with tensors called ``names``.

        Raises ``NoRoom`` if memory is short; the caller then keeps the model.

        - ``exact``: float32 memory and attention. Largest gap to torch's log-probabilities: about 1e-5, not 1e-2.
        - ``half``: float16 keys and values even so. Mean gap for SmolLM2-135M: 0.0024, not 0.0022; not exact: 0.0050.
        - ``card``: as exact as its backend (CUDA: TF32, Vulkan: float16).
        - ``mixes``: a call may hold several adapters; not on a card.
        - ``first``: sequences with memory at first; 0, and on a card: all, at full length.
        """
        library = self._llama = llama()
        self._model = model
        self._names = names
        self._card = card
        self._floats = exact and not half
        self.sequences, self.length = sequences, padded_length(length)
        self.vocabulary = int(library.llama_vocab_n_tokens(library.llama_model_get_vocab(model)))
        self.weights = int(library.llama_model_size(model))
        self.held = np.zeros(sequences, np.int32)
        self._adapters: Handles = np.empty(0, np.int64)
        self._adapter: int | None = None
        self._filled = b"", np.empty(0, np.int32), np.empty(0, np.int64), list[int]()
        """Sequences of the last call with one row each; all rows, the places of those, and of fillers."""
        parameters = self._parameters = library.llama_context_default_params()
        parameters.n_batch = max(length, sequences)
        parameters.n_ubatch = min(MICRO_BATCH, parameters.n_batch)
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.type_k = parameters.type_v = F32 if self._floats else F16
        parameters.kv_unified = False  # else a step costs the square of the number of sequences
        parameters.offload_kqv = parameters.op_offload = card
        parameters.no_perf = True
        parameters.flash_attn_type = OFF if exact else AUTO if card else ON  # by itself it computes in float16
        self._mixing = mixing(library, names, threads, int(parameters.n_ubatch)) if mixes and not card else None
        self.mixes = self._mixing is not None
        if self._mixing:
            parameters.cb_eval = self._mixing.callback
        last_errors()
        small = bool(first) and not card
        self._begin(min(first, sequences) if small else sequences, padded_length(1) if small else self.length)
        self._batch = Batch(library, int(library.llama_n_batch(self._context)))

    def _begin(self, room: int, reach: int) -> None:
        done = self._make(room, reach)
        if done and room < self.sequences and not self._grows():
            self._llama.llama_free(self._context)
            done = self._make(self.sequences, reach)
        if not done:
            if self._mixing:
                self._mixing.close()
            raise NoRoom(
                f"llama.cpp could not make a context of {self._room} x {self._reach} tokens{last_errors()}.",
                "Lower the number of sequences or their length.",
            )

    @property
    def room(self) -> int:
        return self._room

    def _make(self, room: int, reach: int) -> bool:
        self._parameters.n_seq_max = room
        self._parameters.n_ctx = room * reach
        self._room, self._reach = room, reach
        self._logits = np.empty((0, self.vocabulary), np.float32)
        self._context = self._llama.llama_init_from_model(self._model, self._parameters)
        if self._context:
            self._memory = self._llama.llama_get_memory(self._context)
        return bool(self._context)

    def _grows(self) -> bool:
        state = np.frombuffer(self._state(0)[0], np.uint32)
        self._head = len(state) - self._room - 1
        return bool(self._head >= 0 and (state[self._head :] == [self._room, *[0] * self._room]).all())

    def grow(self, more: int, needed: bool) -> None:
        room = min(self._room + more + more % 2, self.sequences)
        if (
            key_value_bytes(self._names.config, room - self._room, self._reach, self._floats)
            > FREE * available_memory()
        ):
            if not needed:
                return
            room = self._room + 2
        if self._remake(room, self._reach) or not needed:
            return
        room = self._room + 2  # the estimate was too small
        if not self._remake(room, self._reach):
            raise MemoryError(f"there is none for {room} x {self._reach} tokens{last_errors()}")

    def _remake(self, room: int, reach: int) -> bool:
        states = [(sequence, *self._state(sequence)) for sequence in np.flatnonzero(self.held).tolist()]
        before, adapter = (self._room, self._reach), self._adapter
        self._llama.llama_free(self._context)
        self._adapter = None
        done = self._make(room, reach)
        if not done and not self._make(*before):
            raise MemoryError(f"there is none any more for {before[0]} x {before[1]} tokens{last_errors()}")
        self._use(adapter)
        for sequence, buffer, size in states:
            taken = self._taken_over(buffer, self._room - before[0])
            if not self._restore(sequence, taken, size + len(taken) - len(buffer)):
                raise RuntimeError(f"llama.cpp could not take over what sequence {sequence} holds{last_errors()}")
        del states
        give_back()
        return done

    def _taken_over(self, state: Any, more: int) -> Any:
        """A state for a context of ``more`` further sequences.

        After ``head`` numbers: the number of sequences, each one's number of tokens (0 for all but one), the tokens
        (``llama_kv_cache::state_write``).
        """
        if more <= 0:
            return state
        buffer: Any = (ctypes.c_uint8 * (len(state) + 4 * more))()
        ctypes.memmove(buffer, state, len(state))
        np.frombuffer(buffer, np.uint32, count=1, offset=4 * self._head)[:] += more
        return buffer

    def _state(self, sequence: int) -> tuple[Any, int]:
        size = int(self._llama.llama_state_seq_get_size(self._context, sequence))
        buffer = (ctypes.c_uint8 * size)()
        return buffer, int(self._llama.llama_state_seq_get_data(self._context, buffer, size, sequence))

    def _restore(self, sequence: int, buffer: Any, size: int) -> bool:
        done = self._llama.llama_state_seq_set_data(self._context, buffer, size, sequence)
        return bool(0 < size == done)

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        if len(sequences) > 1 and sequences[0] == sequences[1]:
            wanted = np.flatnonzero(outputs)
            if len(wanted) != 1:
                return self._call(tokens, positions, sequences, outputs, self._adapters)
            outputs = outputs.copy()  # an output of one row has other last bits
            outputs[wanted - 1 if wanted[0] else 1] = 1
            row = int(wanted[0] > 0)
            return self._call(tokens, positions, sequences, outputs, self._adapters)[row : row + 1]
        if self._filled[0] != sequences.tobytes():  # many calls in succession have the same
            rows = rows_with_fillers(sequences)
            places = np.searchsorted(rows, sequences)
            fillers = np.setdiff1d(np.arange(len(rows)), places).tolist()
            self._filled = sequences.tobytes(), rows, places, fillers
        _, rows, places, fillers = self._filled
        if len(rows) == len(sequences) and outputs.all():
            return self._call(tokens, positions, sequences, outputs, self._adapters)
        begins = self.held[rows]
        given, at, adapters = np.zeros(len(rows), np.int32), begins.copy(), self._adapters
        given[places], at[places] = tokens, positions
        if len(adapters) > 1:  # fillers have the adapter of the row before
            adapters = adapters[np.maximum(np.searchsorted(sequences, rows, side="right") - 1, 0)]
        try:
            logits = self._call(given, at, rows, np.ones(len(rows), np.int8), adapters)
        finally:
            for place in fillers:
                self.cut(int(rows[place]), int(begins[place]))
        wanted_rows: Logits = logits[places[outputs != 0]]
        return wanted_rows

    def _call(
        self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8], adapters: Handles
    ) -> Logits:
        reach = int(positions.max(initial=0)) + 1
        if reach > self._reach:
            reach = min(padded_length(max(reach, self._reach * 5 // 4)), self.length)
            if not self._remake(self._room, reach):
                raise MemoryError(f"there is none for {self._room} x {reach} tokens{last_errors()}")
        self.held[sequences] = positions + 1  # a call that fails may have written some of them
        if self._mixing:
            self._mixing.begin(adapters, sequences)
        code = self._llama.llama_decode(self._context, self._batch.fill(tokens, positions, sequences, outputs))
        if code != 0:
            raise DecodeFailed(f"llama.cpp failed to decode {len(tokens)} rows with code {code}{last_errors()}.")
        if self._mixing:
            self._mixing.end()
        count = int(np.count_nonzero(outputs))
        if count == 0:
            return np.empty((0, self.vocabulary), np.float32)
        pointer = self._llama.llama_get_logits(self._context)
        # Making an array from a pointer takes longer than sampling a row; most calls return the same one.
        if len(self._logits) != count or self._logits.ctypes.data != ctypes.addressof(pointer.contents):
            self._logits = np.ctypeslib.as_array(pointer, shape=(count, self.vocabulary))
        return self._logits

    def cut(self, sequence: int, length: int) -> None:
        if length == 0 or self.held[sequence] > length:
            self._llama.llama_memory_seq_rm(self._memory, sequence, length, -1)
            self.held[sequence] = length

    def copy(self, source: int, targets: list[int], length: int) -> None:
        """llama.cpp copies only at the next call; a state read before, as a processor does to grow, would miss it. So
        there the copy goes through a buffer."""
        state = None if self._card else self._state(source)
        for target in targets:
            if state is None:
                self._llama.llama_memory_seq_cp(self._memory, source, target, -1, -1)
            elif not self._restore(target, *state):
                raise RuntimeError(f"llama.cpp could not copy what sequence {source} holds{last_errors()}")
            self.held[target] = self.held[source]
            self.cut(target, length)

    def use(self, adapters: Handles, alike: bool = True) -> None:
        self._adapters = adapters
        if not self._mixing:
            self._use(int(adapters[0]) if len(adapters) else None)

    def _use(self, adapter: int | None) -> None:
        if adapter == self._adapter:
            return
        count = 0 if adapter is None else 1
        handles = (self._llama.llama_adapter_lora_p_ctypes * count)()
        if adapter is not None:
            handles[0] = ctypes.cast(adapter, self._llama.llama_adapter_lora_p_ctypes)
        self._llama.llama_set_adapters_lora(self._context, handles, count, (ctypes.c_float * count)(*[1.0] * count))
        self._adapter = adapter

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        with adapter_in_memory(self._names, adapter, alpha) as file:
            handle = self.read_adapter(file)
        if self._mixing is None:
            return handle
        self._free(handle)  # llama.cpp has read it, so it fits
        return self._mixing.add(adapter, alpha)

    def read_adapter(self, path: Path) -> int:
        handle = self._llama.llama_adapter_lora_init(self._model, str(path).encode())
        if not handle:
            raise AdapterError(f"llama.cpp cannot load the adapter{last_errors()}.")
        return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)

    def free_adapter(self, adapter: int) -> None:
        if self._mixing:
            self._mixing.remove(adapter)
            return
        if adapter == self._adapter:
            self._use(None)
        self._llama.llama_synchronize(self._context)  # a card may still compute a call with unread logits
        self._free(adapter)

    def _free(self, adapter: int) -> None:
        self._llama.llama_adapter_lora_free(ctypes.cast(adapter, self._llama.llama_adapter_lora_p_ctypes))

    def close(self) -> None:
        self._llama.llama_free(self._context)
        if self._mixing:
            self._mixing.close()
        self._llama.llama_model_free(self._model)


class Batch:
    """Room for ``size`` rows of a decode call."""

    def __init__(self, library: Any, size: int) -> None:
        self._arrays: dict[str, NDArray[Any]] = {
            name: np.zeros(size, np.int32) for name in ("token", "pos", "n_seq_id")
        }
        self._sequences, self._arrays["logits"] = np.zeros(size, np.int32), np.zeros(size, np.int8)
        self._arrays["n_seq_id"][:] = 1
        self._arrays["seq_id"] = self._sequences.ctypes.data + np.arange(size, dtype=np.uintp) * 4
        self._batch = library.llama_batch()
        for field, array in self._arrays.items():
            kind = dict(library.llama_batch._fields_)[field]
            setattr(self._batch, field, ctypes.cast(array.ctypes.data, kind))

    def fill(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Any:
        """All (n,), n up to the size; valid until the next call."""
        count = len(tokens)
        self._sequences[:count] = sequences
        for name, values in (("token", tokens), ("pos", positions), ("logits", outputs)):
            self._arrays[name][:count] = values
        self._batch.n_tokens = count
        return self._batch
