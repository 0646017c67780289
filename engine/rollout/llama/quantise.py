"""llama.cpp's quantiser: makes a smaller GGUF from one in float32."""

from __future__ import annotations

import ctypes
from pathlib import Path

from ...errors import BaseModelError
from .native import last_errors, llama

TYPES = {"q8_0": 7, "q6_k": 18, "q5_k_m": 17, "q4_k_m": 15}
"""LLAMA_FTYPE_MOSTLY_… in llama.h, by the names of ``engine/base/precision.py``."""


def quantise(source: Path, target: Path, weights: str, threads: int = 1) -> None:
    """Write ``source`` with its matrices in one of ``TYPES``. Raises ``BaseModelError`` if llama.cpp cannot.

    Matrices whose rows such a type cannot hold get a finer one that can; vectors stay as they are.
    """
    library = llama()
    parameters = library.llama_model_quantize_default_params()
    parameters.ftype = TYPES[weights]
    parameters.nthread = threads
    last_errors()
    code = library.llama_model_quantize(str(source).encode(), str(target).encode(), ctypes.byref(parameters))
    if code != 0:
        raise BaseModelError(
            f"llama.cpp could not write the base model as {weights}{last_errors()}.", "Is there space on the disk?"
        )
