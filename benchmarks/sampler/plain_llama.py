"""Plain llama.cpp: its low-level API in the loop that its examples show, without any code of marlaas.

Its defaults (float16 memory, flash attention), but a memory for each sequence (else 256 sequences cost the square), one
thread, greedy choice. All rows of an adapter go into one call; prompts are computed for every sequence.
"""

from __future__ import annotations

import ctypes
import time
from typing import Any

import llama_cpp.llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

from .cases import EQUAL, LENGTH, UNEQUAL, Case
from .files import Files


class Plain:
    """``Side`` on llama.cpp alone."""

    def __init__(self, files: Files) -> None:
        llama.llama_backend_init()
        path = str(files.base_gguf()).encode()
        self._model = llama.llama_model_load_from_file(path, llama.llama_model_default_params())
        settings = llama.llama_context_default_params()
        settings.n_seq_max = 256
        settings.n_ctx = 256 * LENGTH
        settings.n_batch = 4096
        settings.n_ubatch = 512
        settings.n_threads = settings.n_threads_batch = 1
        settings.kv_unified = False
        settings.no_perf = True
        self._context = llama.llama_init_from_model(self._model, settings)
        self._memory = llama.llama_get_memory(self._context)
        self._vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(self._model))
        self._batch: Any = llama.llama_batch_init(settings.n_batch, 0, 1)
        self._token = np.ctypeslib.as_array(self._batch.token, (settings.n_batch,))
        self._position = np.ctypeslib.as_array(self._batch.pos, (settings.n_batch,))
        self._output = np.ctypeslib.as_array(self._batch.logits, (settings.n_batch,))
        self._owners: list[int] = []
        """The sequence of each row of the last call."""
        self._adapters = [
            llama.llama_adapter_lora_init(self._model, str(files.adapter_gguf(number)).encode())
            for number in range(EQUAL + UNEQUAL)
        ]

    def run(self, case: Case, repetition: int) -> float:
        """Token by token, adapter by adapter."""
        prompts = case.prompts(repetition)
        owner = np.array([case.adapter(sequence) for sequence in range(case.sequences)])
        rows = {int(adapter): np.flatnonzero(owner == adapter) for adapter in np.unique(owner)}
        began = time.perf_counter()
        last = np.zeros(case.sequences, np.int32)
        for adapter, sequences in rows.items():
            self._use(adapter)
            at_once = max(1, 4096 // case.prompt)
            for begin in range(0, len(sequences), at_once):
                part = sequences[begin : begin + at_once]
                last[part] = self._decode(prompts[part], part, 0)
        for step in range(case.tokens - 1):
            for adapter, sequences in rows.items():
                if case.adapters > 1:
                    self._use(adapter)
                last[sequences] = self._decode(last[sequences][:, None], sequences, case.prompt + step)
        seconds = time.perf_counter() - began
        llama.llama_memory_clear(self._memory, False)
        return seconds

    def close(self) -> None:
        """See ``Side``."""
        llama.llama_batch_free(self._batch)
        for adapter in self._adapters:
            llama.llama_adapter_lora_free(adapter)
        llama.llama_free(self._context)
        llama.llama_model_free(self._model)

    def _use(self, adapter: int) -> None:
        handles = (llama.llama_adapter_lora_p_ctypes * 1)(self._adapters[adapter])
        llama.llama_set_adapters_lora(self._context, handles, 1, (ctypes.c_float * 1)(1.0))

    def _decode(self, tokens: NDArray[np.int32], sequences: NDArray[np.int64], start: int) -> NDArray[np.int64]:
        """The likeliest next token of each sequence after its new ``tokens`` (n, k)."""
        count, new = tokens.shape
        owners = np.repeat(sequences, new).tolist()
        if owners != self._owners:
            for row, sequence in enumerate(owners):
                self._batch.n_seq_id[row] = 1
                self._batch.seq_id[row][0] = sequence
            self._owners = owners
        rows = len(owners)
        self._token[:rows] = tokens.ravel()
        self._position[:rows] = np.tile(np.arange(start, start + new), count)
        self._output[:rows] = np.tile(np.arange(new) == new - 1, count)
        self._batch.n_tokens = rows
        if llama.llama_decode(self._context, self._batch) != 0:
            raise RuntimeError("llama.cpp could not decode.")
        logits = np.ctypeslib.as_array(llama.llama_get_logits(self._context), shape=(count, self._vocabulary))
        likeliest: NDArray[np.int64] = logits.argmax(1)
        return likeliest
