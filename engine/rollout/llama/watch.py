"""Shows us a context's graphs while they run (``cb_eval`` in llama.h), so that they compute what no setting offers."""

from __future__ import annotations

import logging
from typing import Any

from ...base import GgufNames
from ..batching.context import DecodeFailed, Handles, Ints
from .attention import past_casts
from .mixing import Ggml, Mixing, Tensor, Unknown, ggml, operation

OPENMP = b"OPENMP = 1"

log = logging.getLogger(__name__)


def watch(library: Any, names: GgufNames, threads: int, rows: int, floats: bool, mixes: bool) -> Watch | None:
    """For a context of ``library``, llama.cpp, on the processor, with micro-batches of ``rows`` rows at most.

    ``floats`` asks for flash attention in float32, ``mixes`` for rows of several adapters in one call. These are left
    out where the library would start its threads anew for each layer, because it was built without OpenMP. None where
    nothing is left to do, and where the installed library is other than ``ggml`` knows it.
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
        """``library`` is llama.cpp; the rest is as ``watch`` has it."""
        self.floats = floats
        self.mixing = mixing
        self._ggml = ggml
        self._error: BaseException | None = None
        self.callback = library.ggml_backend_sched_eval_callback(self._called)

    def begin(self, adapters: Handles, sequences: Ints) -> None:
        """The next call of llama.cpp has rows of these ``sequences``, (n,), under these ``adapters``: (n,), (1,) for
        all rows, or (0,) for none."""
        self._error = None
        if self.mixing:
            self.mixing.begin(adapters, sequences)

    def end(self) -> None:
        """The call has returned. Raises ``DecodeFailed`` unless it computed what was asked for."""
        error, self._error = self._error, None
        if error is None and self.mixing:
            error = self.mixing.lacking()
        if isinstance(error, MemoryError):
            raise error
        if error is not None:
            raise DecodeFailed(f"llama.cpp did not compute what was asked for: {error}.") from error

    def close(self) -> None:
        """Free everything; the context must be gone."""
        if self.mixing:
            self.mixing.close()

    def _called(self, address: int, ask: bool, _: object) -> bool:
        """See ``ggml_backend_sched_eval_callback``: asked whether we want to see a tensor, then shown it.

        All tensors up to the next one that we want to see are asked about before any of them is computed.
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
        """Give a product what the adapters add to it; True, which lets the graph go on."""
        if self.mixing:
            self.mixing.show(Tensor.from_address(address))
        return True
