"""The file that llama.cpp reads the base from: one that marlaas writes, or one that the user brought.

Files of ours are derived data, written once for each base and precision, in a folder of the home.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from ...base import (
    BITS,
    WRITTEN,
    BaseModel,
    GgufNames,
    base_bytes,
    brought_names,
    ensure,
    names_of,
    path_of,
    verify,
    write_base,
)
from ...errors import BaseModelError
from .native import last_errors, llama


@dataclass(frozen=True)
class BaseFile:
    """What a ``LlamaContext`` needs to know of its base."""

    path: Path
    names: GgufNames
    ours: bool
    """Whether marlaas wrote it, and can write it again."""


def base_file(base: BaseModel, folder: Path, weights: str = "f32", gguf: str = "", threads: int = 1) -> BaseFile:
    """The file named by ``gguf``, else ours in the precision ``weights``, kept in ``folder``.

    Raises ``BaseModelError`` for a file of another base, for architectures that need one where none is named, and where
    ours cannot be written.
    """
    if gguf:
        path = Path(gguf).expanduser()
        return BaseFile(path, brought_names(path, base.config), ours=False)
    names = names_of(base.config)
    return BaseFile(ensure_base_gguf(base, folder, weights, threads), names, ours=True)


def ensure_base_gguf(base: BaseModel, folder: Path, weights: str = "f32", threads: int = 1) -> Path:
    """The path of ``<folder>/<fingerprint>-<weights>.gguf``, written first if it is missing or damaged.

    ``weights`` is one of ``precision.PRECISIONS``. Raises ``BaseModelError`` for architectures that our writer does not
    cover, and when the file cannot be written.
    """
    path, plain = (path_of(base, folder, kind) for kind in (weights, "f32"))
    if verify(path) is None:
        return path
    size = base_bytes(base, weights if weights in WRITTEN else "f32")
    if weights in WRITTEN:
        return ensure(path, size, partial(write_base, base, weights=weights))
    quantised = int(size / 32 * (BITS[weights] + 1))  # one bit more: matrices that do not fit the type get a finer one
    if verify(plain) is None:
        return ensure(path, quantised, lambda target: quantise(plain, target, weights, threads))
    return ensure(path, size + quantised, partial(_by_way_of_float32, base, weights, threads))


def _by_way_of_float32(base: BaseModel, weights: str, threads: int, target: Path) -> None:
    between = target.with_name(f"{target.name}.f32")
    try:
        write_base(base, between)
        quantise(between, target, weights, threads)
    finally:
        between.unlink(missing_ok=True)


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
