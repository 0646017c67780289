"""The cards that the installed llama.cpp can compute on, from ggml's list of devices.

ggml (https://github.com/ggml-org/llama.cpp/blob/master/ggml/include/ggml-backend.h) knows the devices of the backends
that it was built with, CUDA, Vulkan, Metal or ROCm, as far as their own variables (``CUDA_VISIBLE_DEVICES``,
``GGML_VK_VISIBLE_DEVICES``) show them.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...devices import Kind
from ...errors import ConfigError
from .native import llama

GPU, INTEGRATED = 1, 2
"""GGML_BACKEND_DEVICE_TYPE_… in ggml-backend.h; 0 is the processor, others only help it."""
KINDS: dict[str, Kind] = {"CUDA": "cuda", "MUSA": "cuda", "ROCm": "rocm", "Vulkan": "vulkan", "MTL": "metal"}
"""Kinds of cards by the names of ggml's devices, without the number."""


@dataclass(frozen=True)
class Card:
    """One device of llama.cpp other than the processor."""

    name: str
    """ggml's name, such as ``Vulkan0``."""
    description: str
    """The maker's name for it."""
    kind: Kind
    handle: int
    """ggml's pointer to it; it lives as long as the process."""


def cards() -> tuple[Card, ...]:
    """The cards that llama.cpp would use by default: those with their own memory, else those that share the machine's.

    Devices of backends that are not in ``KINDS`` (remote ones) are left out. Raises ``ConfigError`` without llama.cpp.
    """
    ggml = _ggml()
    found: dict[int, list[Card]] = {GPU: [], INTEGRATED: []}
    for index in range(ggml.ggml_backend_dev_count()):
        handle = ggml.ggml_backend_dev_get(index)
        name = ggml.ggml_backend_dev_name(handle).decode("utf-8", "replace")
        kind = KINDS.get(name.rstrip("0123456789"))
        of_type = found.get(ggml.ggml_backend_dev_type(handle))
        if kind is not None and of_type is not None:
            description = ggml.ggml_backend_dev_description(handle).decode("utf-8", "replace")
            of_type.append(Card(name, description, kind, handle))
    return tuple(found[GPU] or found[INTEGRATED])


def memory_of(card: Card) -> tuple[int, int]:
    """(free, total) bytes, as its driver says. On CUDA asking takes some hundred megabytes of the card."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _ggml().ggml_backend_dev_memory(card.handle, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def handles(names: Sequence[str]) -> Any:
    """The array of devices for llama.cpp: those of these names, then a zero; without names, the processor alone.

    Raises ``ConfigError`` for an unknown name.
    """
    known = {card.name: card.handle for card in cards()} if names else {}
    missing = [name for name in names if name not in known]
    if missing:
        raise ConfigError(
            f"llama.cpp sees no card {', '.join(missing)}, only {', '.join(known) or 'the processor'}.",
            "`marlaas doctor` says what is installed and which cards are there.",
        )
    return (ctypes.c_void_p * (len(names) + 1))(*(known[name] for name in names), None)


@cache
def _ggml() -> Any:
    """ggml's functions on devices, which llama_cpp does not declare."""
    llama()  # the backends register themselves
    import llama_cpp._ggml

    library = llama_cpp._ggml.libggml
    pointer, size = ctypes.c_void_p, ctypes.POINTER(ctypes.c_size_t)
    for name, result, arguments in (
        ("dev_count", ctypes.c_size_t, []),
        ("dev_get", pointer, [ctypes.c_size_t]),
        ("dev_name", ctypes.c_char_p, [pointer]),
        ("dev_description", ctypes.c_char_p, [pointer]),
        ("dev_type", ctypes.c_int, [pointer]),
        ("dev_memory", None, [pointer, size, size]),
    ):
        function = getattr(library, f"ggml_backend_{name}")
        function.restype, function.argtypes = result, arguments
    return library
