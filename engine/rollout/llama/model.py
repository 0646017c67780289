"""Loads the base into llama.cpp, in main memory and on cards."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from ...errors import BaseModelError
from .base_file import BaseFile
from .cards import handles
from .native import last_errors, llama

ALL = -1
"""Number of layers that means all of them, and the output matrix."""
DAMAGED = "Delete it; it is written again."
BROUGHT = "It may be damaged, or of an architecture that this llama.cpp does not know."


def load_model(file: BaseFile, devices: Sequence[str] = (), layers: int = ALL) -> Any:
    """Read the base in ``file``; its last ``layers`` layers go to the cards called ``devices``, in even parts.

    Without ``devices`` no card is touched, whatever llama.cpp was built for. Raises ``BaseModelError`` if llama.cpp
    cannot read it, if it is no decoder with attention, or memory is short; ``ConfigError`` if a card is not there.
    """
    library = llama()
    settings = library.llama_model_default_params()
    # Repacked weights are a second copy in memory, make a row's last bits depend on the number of rows, and end the
    # process on processors with AMX (https://github.com/ggml-org/llama.cpp/issues/20824).
    settings.use_extra_bufts = False
    chosen = handles(devices)  # kept in a variable, so that it lives as long as the call
    settings.devices = ctypes.addressof(chosen)
    settings.n_gpu_layers = layers if devices else 0
    last_errors()
    model = library.llama_model_load_from_file(str(file.path).encode(), settings)
    if not model:
        raise BaseModelError(f"llama.cpp cannot load {file.path}{last_errors()}.", DAMAGED if file.ours else BROUGHT)
    if reason := _other_kind(library, model):
        library.llama_model_free(model)
        raise BaseModelError(
            f"the model {reason}; marlaas samples decoders with attention only.",
            "Choose another base.",
            where=str(file.path),
        )
    return model


def _other_kind(library: Any, model: Any) -> str:
    """Why a model cannot be sampled from, or nothing: it must forget a sequence's end, and need only earlier tokens."""
    for other, kind in (
        (library.llama_model_is_recurrent(model), "has recurrent layers"),
        (library.llama_model_is_hybrid(model), "has recurrent layers"),
        (library.llama_model_has_encoder(model), "has an encoder"),
        (library.llama_model_is_diffusion(model), "does not write from left to right"),
    ):
        if other:
            return kind
    return ""
