"""One llama.cpp model and context. The only place that computes with llama.cpp.

Knows sequences by number and adapters by handle; nothing of conversations, versions or sampling. Not safe for threads.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ...base import MICRO_BATCH, GgufNames, adapter_in_memory
from ...errors import AdapterError, BaseModelError
from ..batching.context import Arrays, DecodeFailed, Handles, Ints, Logits
from .mixing import mixing
from .native import last_errors, llama

F32, F16 = 0, 1
"""GGML_TYPE_F32 and GGML_TYPE_F16 in ggml.h"""
AUTO, OFF, ON = -1, 0, 1
"""LLAMA_FLASH_ATTN_TYPE_… in llama.h; AUTO uses it where the card's backend has it for this base."""


class NoRoom(BaseModelError):
    """A context of that size could not be allocated."""


class LlamaContext:
    """Implements ``batching.context.Context``; all memory is allocated at once."""

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
    ) -> None:
        """Take over ``model`` (see ``load_model``), which ``close`` frees, and whose file calls its tensors ``names``.

        Raises ``NoRoom`` if memory is short; the model is then still the caller's.

        ``exact`` keeps memory and attention in float32: the largest gap to torch's log-probabilities is then about 1e-5
        instead of 1e-2. Each step then reads full blocks of 256 tokens of every sequence, 0.5 MB on the tiny base,
        while flash attention reads only what is held. ``card`` says that the model is on one: keys and values are then
        beside it, and its products are as exact as its backend makes them (CUDA: TF32, Vulkan: float16), whatever the
        memory is. ``mixes`` lets a call hold rows of several adapters, where the installed llama.cpp allows it (see
        ``mixing``); not on a card.
        """
        self._llama = llama()
        parameters = self._llama.llama_context_default_params()
        parameters.n_seq_max = sequences
        parameters.n_ctx = sequences * length
        parameters.n_batch = max(length, sequences)
        parameters.n_ubatch = min(MICRO_BATCH, parameters.n_batch)
        parameters.n_threads = parameters.n_threads_batch = threads
        # Flash attention computes in float16 whatever the memory's type, so the two settings belong together.
        parameters.type_k = parameters.type_v = F32 if exact else F16
        parameters.flash_attn_type = OFF if exact else AUTO if card else ON
        parameters.kv_unified = False  # else a step costs the square of the number of sequences
        parameters.offload_kqv = parameters.op_offload = card
        parameters.no_perf = True
        wanted = mixes and not card
        self._mixing = mixing(self._llama, names, threads, int(parameters.n_ubatch)) if wanted else None
        if self._mixing:
            parameters.cb_eval = self._mixing.callback
        last_errors()
        self._model = model
        self._context = self._llama.llama_init_from_model(model, parameters)
        if not self._context:
            if self._mixing:
                self._mixing.close()
            raise NoRoom(
                f"llama.cpp could not make a context of {sequences} x {length} tokens{last_errors()}.",
                "Lower the number of sequences or their length.",
            )
        self._memory = self._llama.llama_get_memory(self._context)
        self.sequences = int(self._llama.llama_n_seq_max(self._context))
        self.length = int(self._llama.llama_n_ctx_seq(self._context))
        self.mixes = self._mixing is not None
        self.joins = False
        self.vocabulary = int(self._llama.llama_vocab_n_tokens(self._llama.llama_model_get_vocab(model)))
        self.held = np.zeros(self.sequences, np.int32)
        """How many tokens the memory of each sequence holds."""
        self.weights = int(self._llama.llama_model_size(model))
        """Bytes that every call reads."""
        self._rows = Rows(self._llama, int(self._llama.llama_n_batch(self._context)))
        self._logits = np.empty((0, self.vocabulary), np.float32)
        self._names = names
        self._adapter: int | None = None
        self._adapters: Handles = np.empty(0, np.int64)

    def decode(self, tokens: Ints, positions: Ints, sequences: Ints, outputs: NDArray[np.int8]) -> Logits:
        """Run one call; all arguments are (n,). Returns float32 (outputs.sum(), V), valid until the next call.

        Raises ``DecodeFailed``; the sequences of the call are then in an unknown state.
        """
        self.held[sequences] = positions + 1  # a call that fails may have written some of them
        if self._mixing:
            self._mixing.begin(self._adapters, sequences)
        code = self._llama.llama_decode(self._context, self._rows.fill(tokens, positions, sequences, outputs))
        if code != 0:
            raise DecodeFailed(f"llama.cpp failed to decode {len(tokens)} rows with code {code}{last_errors()}.")
        if self._mixing:
            self._mixing.end()
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
        """Forget what a sequence holds from position ``length`` on; 0 empties it, also after a failed call."""
        if length == 0 or self.held[sequence] > length:
            self._llama.llama_memory_seq_rm(self._memory, sequence, length, -1)
            self.held[sequence] = length

    def copy(self, source: int, target: int, length: int) -> None:
        """Give ``target``, which is empty, the first ``length`` tokens of ``source``."""
        self._llama.llama_memory_seq_cp(self._memory, source, target, -1, -1)
        self.held[target] = self.held[source]
        self.cut(target, length)

    def use(self, adapters: Handles, alike: bool = True) -> None:
        """See the protocol: unless it mixes, a call applies its adapter to all rows."""
        self._adapters = adapters
        if not self._mixing:
            self._use(int(adapters[0]) if len(adapters) else None)

    def _use(self, adapter: int | None) -> None:
        """Decode with this adapter, or with the bare base, until this is called again."""
        if adapter == self._adapter:
            return
        count = 0 if adapter is None else 1
        handles = (self._llama.llama_adapter_lora_p_ctypes * count)()
        if adapter is not None:
            handles[0] = ctypes.cast(adapter, self._llama.llama_adapter_lora_p_ctypes)
        self._llama.llama_set_adapters_lora(self._context, handles, count, (ctypes.c_float * count)(*[1.0] * count))
        self._adapter = adapter

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        """See the protocol."""
        with adapter_in_memory(self._names, adapter, alpha) as file:
            handle = self.read_adapter(file)
        if self._mixing is None:
            return handle
        self._free(handle)  # llama.cpp has read it, so it fits
        return self._mixing.add(adapter, alpha)

    def read_adapter(self, path: Path) -> int:
        """Read an adapter's GGUF. Raises ``AdapterError`` if it does not fit the model."""
        handle = self._llama.llama_adapter_lora_init(self._model, str(path).encode())
        if not handle:
            raise AdapterError(f"llama.cpp cannot load the adapter{last_errors()}.")
        return int(ctypes.cast(handle, ctypes.c_void_p).value or 0)

    def free_adapter(self, adapter: int) -> None:
        """Give an adapter's memory back."""
        if self._mixing:
            self._mixing.remove(adapter)
            return
        if adapter == self._adapter:
            self._use(None)
        self._llama.llama_synchronize(self._context)  # a card may still compute a call whose logits were not read
        self._free(adapter)

    def _free(self, adapter: int) -> None:
        self._llama.llama_adapter_lora_free(ctypes.cast(adapter, self._llama.llama_adapter_lora_p_ctypes))

    def close(self) -> None:
        """Free everything; the object cannot be used afterwards. Adapters must have been freed before."""
        self._llama.llama_free(self._context)
        self._llama.llama_model_free(self._model)
        if self._mixing:
            self._mixing.close()


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
