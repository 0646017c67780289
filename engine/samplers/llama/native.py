"""llama.cpp's library: its backends and the cards that it reaches."""

from __future__ import annotations

import ctypes
import json
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

from ...devices.machine import Kind
from ...devices.software import llama_build, why_missing
from ...errors import ConfigError

# Loads llama.cpp's low-level functions and silences its log; the last errors go into messages.

ERROR_LEVEL = 4
"""GGML_LOG_LEVEL_ERROR in ggml.h"""

_errors: deque[str] = deque(maxlen=3)
"""The last errors, the newest last; llama.cpp reports the cause first, then its effect."""
_kept_alive: list[Any] = []
"""llama.cpp keeps only a pointer to the log function, which must live as long as the library."""


@cache
def llama() -> Any:
    """The module ``llama_cpp.llama_cpp``, ready to use. Raises ``ConfigError`` if it is missing or does not load."""
    try:
        import llama_cpp.llama_cpp as library
    except (ImportError, OSError, RuntimeError) as error:
        why, hint = why_missing(llama_build())
        raise ConfigError(
            f"llama.cpp could not be loaded: {why or error}.", hint or "Install it with `pip install 'marlaas[cpu]'`."
        ) from error

    @library.llama_log_callback  # type: ignore[untyped-decorator]
    def remember(level: int, text: bytes, _: object) -> None:
        if level == ERROR_LEVEL:
            _errors.append(text.decode("utf-8", "replace").strip().rstrip("."))

    library.llama_log_set(remember, ctypes.c_void_p(0))
    _kept_alive.append(remember)
    library.llama_backend_init()
    return library


def last_errors() -> str:
    """llama.cpp's errors since the last call, as `` (text)`` to be put before a full stop, or nothing."""
    text = "; ".join(_errors)
    _errors.clear()
    return f" ({text})" if text else ""


# The cards that the installed llama.cpp can compute on, from ggml's list of devices:
# https://github.com/ggml-org/llama.cpp/blob/master/ggml/include/ggml-backend.h
#
# ``CUDA_VISIBLE_DEVICES`` and ``GGML_VK_VISIBLE_DEVICES`` limit it.

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
    """(free, total) bytes, from its driver. On CUDA this call takes some hundred megabytes of the card."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _ggml().ggml_backend_dev_memory(card.handle, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def handles(names: Sequence[str]) -> Any:
    """The zero-terminated array of these devices for llama.cpp; without names only the processor.

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


# Prints llama.cpp's cards and their memory as a line of JSON. Not for CUDA: the query would take memory of the card.


def main() -> None:
    """Print them. Raises ``ConfigError`` if llama.cpp cannot be loaded."""
    lines = []
    for card in cards():
        free, total = memory_of(card) if card.kind != "cuda" else (0, 0)
        facts = {"name": card.name, "description": card.description, "kind": card.kind}
        lines.append({**facts, "free": free, "memory": total})
    print(json.dumps({"library": "llama.cpp", "cards": lines}), flush=True)


if __name__ == "__main__":
    main()
