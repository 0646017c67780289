"""One context of llama.cpp over all conversations of a base."""

from __future__ import annotations

import ctypes
import logging
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...devices.limits import available_memory
from ...errors import AdapterError, BaseModelError
from ...models.gguf import GgufNames, adapter_in_memory
from ...models.memory import FLASH, MICRO_BATCH, key_value_bytes, padded_length
from ..batching.context import Arrays, DecodeFailed, Handles, Ints, Logits
from ..batching.sampler import SPARE
from .mixing import Ggml, Mixing, Tensor, Unknown, ggml, operation, past_casts
from .native import last_errors, llama

# Changes a context's graphs while they run (``cb_eval`` in llama.h), to compute what no setting offers.

OPENMP = b"OPENMP = 1"

log = logging.getLogger(__name__)


def watch(library: Any, names: GgufNames, threads: int, rows: int, floats: bool, mixes: bool) -> Watch | None:
    """For a context of ``library``, llama.cpp, on the processor, with micro-batches of at most ``rows`` rows.

    ``floats``: flash attention in float32; ``mixes``: rows of several adapters in one call. Without OpenMP both are
    left out, because the library would start its threads again for each layer. None if nothing is left or ggml is
    unknown.
    """
    mixes = mixes and (threads == 1 or OPENMP in library.llama_print_system_info())
    if not (floats or mixes):
        return None
    try:
        known = ggml()
        return Watch(library, known, floats, Mixing(known, names, threads, rows) if mixes else None)
    except Unknown as error:
        log.warning("llama.cpp computes more slowly than it could: %s", error)
        return None


class Watch:
    """The callback of one context."""

    def __init__(self, library: Any, ggml: Ggml, floats: bool, mixing: Mixing | None) -> None:
        self.floats = floats
        self.mixing = mixing
        self._ggml = ggml
        self._error: BaseException | None = None
        self.callback = library.ggml_backend_sched_eval_callback(self._called)

    def begin(self, adapters: Handles, sequences: Ints) -> None:
        """The next call of llama.cpp has rows of these ``sequences``, (n,).

        ``adapters``: (n,), (1,) for all rows, or (0,) for none.
        """
        self._error = None
        if self.mixing:
            self.mixing.begin(adapters, sequences)

    def end(self) -> None:
        error, self._error = self._error, None
        if error is None and self.mixing:
            error = self.mixing.lacking()
        if isinstance(error, MemoryError):
            raise error
        if error is not None:
            raise DecodeFailed(f"llama.cpp did not compute what was asked for: {error}.") from error

    def close(self) -> None:
        if self.mixing:
            self.mixing.close()

    def _called(self, address: int, ask: bool, _: object) -> bool:
        """The ``ggml_backend_sched_eval_callback``: first asks if we want to see a tensor, then shows it.

        All tensors up to the next wanted one are asked about before any of them is computed.
        """
        if self._error is not None:
            return False
        try:
            if not ask:
                return self._mixed(address)
            kind = operation(address)
            if kind == self._ggml.products:
                return self.mixing is not None and self.mixing.asks(Tensor.from_address(address))
            if kind == self._ggml.attention and self.floats:
                past_casts(self._ggml, address)
        except BaseException as error:  # it must not go through C
            self._error = error
        return False

    def _mixed(self, address: int) -> bool:
        if self.mixing:
            self.mixing.show(Tensor.from_address(address))
        return True


# One llama.cpp model and context. The only code that computes with llama.cpp. Not thread-safe.

F32, F16 = 0, 1
"""GGML_TYPE_F32 and GGML_TYPE_F16 in ggml.h"""
AUTO, OFF, ON = -1, 0, 1
"""LLAMA_FLASH_ATTN_TYPE_… in llama.h; AUTO uses it if the card's backend has it for this base."""

FREE = 0.7
"""Share of the free memory that further sequences may take, unless nothing continues without them."""


def give_back() -> None:
    """Give freed memory back to the system: glibc would keep the gaps between used blocks."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)


class NoRoom(BaseModelError):
    """A context of that size could not be allocated."""


class LlamaContext:
    """Implements ``batching.context.Context``.

    llama.cpp writes all memory of a context at once. So the first one is small, and a larger one takes over its
    sequences.
    """

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
        """Take over ``model`` (see ``load_model``), which ``close`` frees; its file calls its tensors ``names``.

        Raises ``NoRoom`` if memory is short; the model is then still the caller's.

        - ``exact``: memory and attention in float32. The largest gap to torch's log-probabilities is then about 1e-5,
          not 1e-2.
        - ``half``: keys and values in float16 all the same. For SmolLM2-135M the mean gap is 0.0024, not 0.0022;
          without ``exact`` 0.0050.
        - ``card``: the model is on a card, and is as exact as its backend (CUDA: TF32, Vulkan: float16).
        - ``mixes``: a call may hold rows of several adapters, if llama.cpp allows it; not on a card.
        - ``first``: sequences with memory at first, including the last ``SPARE``; 0, and on a card: all, at full
          length.
        """
        self._llama = llama()
        self._model = model
        self._names = names
        self._exact, self._floats = exact, exact and not half
        self.sequences, self.length = sequences, padded_length(length)
        last_errors()
        for floats in (True, False) if self._floats and not card and length <= FLASH else (False,):
            if self._open(length, threads, card, mixes and not card, floats, 0 if card else first):
                if not floats or self._reads_floats():
                    return
                self._shut()
        raise NoRoom(
            f"llama.cpp could not make a context of {self._room} x {self._reach} tokens{last_errors()}.",
            "Lower the number of sequences or their length.",
        )

    def _open(self, length: int, threads: int, card: bool, mixes: bool, floats: bool, first: int) -> bool:
        exact = self._exact
        parameters = self._parameters = self._llama.llama_context_default_params()
        parameters.n_batch = max(length, self.sequences)
        parameters.n_ubatch = min(MICRO_BATCH, parameters.n_batch)
        parameters.n_threads = parameters.n_threads_batch = threads
        self._watch = watch(self._llama, self._names, threads, int(parameters.n_ubatch), floats, mixes)
        # Without the watch, flash attention computes in float16 whatever the memory's type.
        flash = not exact or (self._watch is not None and self._watch.floats)
        parameters.type_k = parameters.type_v = F32 if self._floats else F16
        parameters.flash_attn_type = OFF if not flash else AUTO if card else ON
        parameters.kv_unified = False  # else a step costs the square of the number of sequences
        parameters.offload_kqv = parameters.op_offload = card
        parameters.no_perf = True
        if self._watch:
            parameters.cb_eval = self._watch.callback
        self._adapter: int | None = None
        self._shift = SPARE if 0 < first < self.sequences else 0
        """The last ``SPARE`` sequences come first in llama.cpp's numbers, since they have memory from the start."""
        self._head = 0
        done = self._make(first if self._shift else self.sequences, padded_length(1) if first else self.length)
        if done and self._shift and not self._grows():
            self._llama.llama_free(self._context)
            self._shift = 0
            done = self._make(self.sequences, self._reach)
        if not done:
            if self._watch:
                self._watch.close()
            return False
        self._mixing = self._watch.mixing if self._watch else None
        self.mixes = self._mixing is not None
        self.joins = False
        self.vocabulary = int(self._llama.llama_vocab_n_tokens(self._llama.llama_model_get_vocab(self._model)))
        self.held = np.zeros(self.sequences, np.int32)
        """Tokens in the memory of each sequence."""
        self.weights = int(self._llama.llama_model_size(self._model))
        self._rows = Rows(self._llama, int(self._llama.llama_n_batch(self._context)))
        self._logits = np.empty((0, self.vocabulary), np.float32)
        self._card = card
        self._carried: tuple[int, Any, int] | None = None
        """The sequence copied last, with its bytes and their number; until the next call."""
        self._adapters: Handles = np.empty(0, np.int64)
        return True

    def _make(self, room: int, reach: int) -> bool:
        self._parameters.n_seq_max = room
        self._parameters.n_ctx = room * reach
        self._room, self._reach = room, reach
        self._context = self._llama.llama_init_from_model(self._model, self._parameters)
        if self._context:
            self._memory = self._llama.llama_get_memory(self._context)
        return bool(self._context)

    def _grows(self) -> bool:
        state = np.frombuffer(self._state(0)[0], np.uint32)
        self._head = len(state) - self._room - 1
        return bool(self._head >= 0 and (state[self._head :] == [self._room, *[0] * self._room]).all())

    def grow(self, sequences: int, needed: bool) -> bool:
        room = min(sequences + SPARE, self.sequences)
        if room <= self._room:
            return True
        more = key_value_bytes(self._names.config, room - self._room, self._reach, self._floats)
        if not needed and more > FREE * available_memory():
            return False
        if not self._remake(room, self._reach):
            if needed:
                raise MemoryError(f"there is none for {room} x {self._reach} tokens{last_errors()}")
            return False
        return True

    def _remake(self, room: int, reach: int) -> bool:
        states = [(int(sequence), *self._state(sequence)) for sequence in np.flatnonzero(self.held).tolist()]
        before, adapter = (self._room, self._reach), self._adapter
        self._llama.llama_free(self._context)
        self._adapter = self._carried = None
        self._logits = np.empty((0, self.vocabulary), np.float32)
        done = self._make(room, reach)
        if not done and not self._make(*before):
            raise MemoryError(f"there is none any more for {before[0]} x {before[1]} tokens{last_errors()}")
        self._use(adapter)
        for sequence, buffer, size in states:
            taken = _taken_over(buffer, self._head, self._room - before[0])
            if not self._restore(sequence, taken, size + len(taken) - len(buffer)):
                raise RuntimeError(f"llama.cpp could not take over what sequence {sequence} holds{last_errors()}")
        del states
        give_back()
        return done

    def _at(self, sequences: Any) -> Any:
        return (sequences + self._shift) % self.sequences

    def _state(self, sequence: int) -> tuple[Any, int]:
        place = self._at(sequence)
        size = int(self._llama.llama_state_seq_get_size(self._context, place))
        buffer = (ctypes.c_uint8 * size)()
        return buffer, int(self._llama.llama_state_seq_get_data(self._context, buffer, size, place))

    def _restore(self, sequence: int, buffer: Any, size: int) -> bool:
        done = self._llama.llama_state_seq_set_data(self._context, buffer, size, self._at(sequence))
        return bool(0 < size == done)

    def _reads_floats(self) -> bool:
        """False if flash attention of a graph cannot be changed to float32."""
        if self._watch is None or not self._watch.floats:
            return True
        row = np.arange(2, dtype=np.int32)
        try:
            self.decode(row, row, np.zeros(2, np.int32), np.ones(2, np.int8))
        except DecodeFailed as error:
            log.warning("Each step reads more than it must: %s", error)
            return False
        self.cut(0, 0)
        return True

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        """Run one call; all arguments are (n,). Returns float32 (outputs.sum(), V), valid until the next call.

        Raises ``DecodeFailed``; the sequences of the call are then in an unknown state.
        """
        reach = int(positions.max(initial=0)) + 1
        if reach > self._reach:
            reach = min(padded_length(max(reach, self._reach * 5 // 4)), self.length)
            if not self._remake(self._room, reach):
                raise MemoryError(f"there is none for {self._room} x {reach} tokens{last_errors()}")
        self._carried = None
        self.held[sequences] = positions + 1  # a call that fails may have written some of them
        places = self._at(sequences)
        if self._watch:
            self._watch.begin(self._adapters, places)
        code = self._llama.llama_decode(self._context, self._rows.fill(tokens, positions, places, outputs))
        if code != 0:
            raise DecodeFailed(f"llama.cpp failed to decode {len(tokens)} rows with code {code}{last_errors()}.")
        if self._watch:
            self._watch.end()
        return self._outputs(int(np.count_nonzero(outputs)))

    def _outputs(self, count: int) -> Logits:
        if count == 0:
            return np.empty((0, self.vocabulary), np.float32)
        pointer = self._llama.llama_get_logits(self._context)
        # Making an array from a pointer takes longer than sampling a row, and most calls return the same pointer.
        if len(self._logits) != count or self._logits.ctypes.data != ctypes.addressof(pointer.contents):
            self._logits = np.ctypeslib.as_array(pointer, shape=(count, self.vocabulary))
        return self._logits

    def cut(self, sequence: int, length: int) -> None:
        """Forget a sequence from position ``length`` on; 0 empties it, also after a failed call."""
        if length == 0 or self.held[sequence] > length:
            if self._carried is not None and self._carried[0] == sequence:
                self._carried = None
            if self._at(sequence) < self._room:
                self._llama.llama_memory_seq_rm(self._memory, self._at(sequence), length, -1)
            self.held[sequence] = length

    def copy(self, source: int, target: int, length: int) -> None:
        """Give ``target``, which is empty, the first ``length`` tokens of ``source``.

        llama.cpp copies at the next call only, so a state read before would miss it. On a processor, which reads
        states when memory grows, the copy goes through a buffer at once.
        """
        if self._card:
            self._llama.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        else:
            if self._carried is None or self._carried[0] != source:
                self._carried = source, *self._state(source)
            if not self._restore(target, *self._carried[1:]):
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
        """Free everything. Adapters must have been freed before."""
        self._shut()
        self._llama.llama_model_free(self._model)

    def _shut(self) -> None:
        self._llama.llama_free(self._context)
        if self._watch:
            self._watch.close()


def _taken_over(state: Any, head: int, more: int) -> Any:
    """A sequence's state for a context of ``more`` further sequences.

    After ``head`` numbers it has the number of sequences, then for each its number of tokens, here 0 for all but one,
    and the tokens (``llama_kv_cache::state_write``).
    """
    if more <= 0:
        return state
    buffer: Any = (ctypes.c_uint8 * (len(state) + 4 * more))()
    ctypes.memmove(buffer, state, len(state))
    np.frombuffer(buffer, np.uint32, count=1, offset=4 * head)[:] += more
    return buffer


class Rows:
    """Room for ``size`` rows of a decode call."""

    def __init__(self, library: Any, size: int) -> None:
        self._token, self._position, self._sequence = (np.zeros(size, np.int32) for _ in range(3))
        self._output = np.zeros(size, np.int8)
        self._one = np.ones(size, np.int32)
        self._pointers = self._sequence.ctypes.data + np.arange(size, dtype=np.uintp) * self._sequence.itemsize
        self._batch = library.llama_batch()
        arrays: dict[str, NDArray[Any]] = {
            "token": self._token,
            "pos": self._position,
            "n_seq_id": self._one,
            "seq_id": self._pointers,
            "logits": self._output,
        }
        for field, array in arrays.items():
            kind = dict(library.llama_batch._fields_)[field]
            setattr(self._batch, field, ctypes.cast(array.ctypes.data, kind))

    def fill(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Any:
        """The batch of these rows, all (n,) with n up to the size; valid until the next call."""
        count = len(tokens)
        self._token[:count] = tokens
        self._position[:count] = positions
        self._sequence[:count] = sequences
        self._output[:count] = outputs
        self._batch.n_tokens = count
        return self._batch
