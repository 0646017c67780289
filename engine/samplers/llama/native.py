"""llama.cpp's library, its backends and cards."""

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

ERROR_LEVEL = 4
"""GGML_LOG_LEVEL_ERROR in ggml.h"""

_errors: deque[str] = deque(maxlen=3)
"""llama.cpp reports the cause first."""
_kept_alive: list[Any] = []
"""llama.cpp keeps only a pointer, as long as the library lives."""


@cache
def llama() -> Any:
    """The module. Raises ``ConfigError`` if ``llama_cpp.llama_cpp`` is missing or does not load."""
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
    """Errors since the last call, as `` (text)`` for before a full stop, or nothing."""
    text = "; ".join(_errors)
    _errors.clear()
    return f" ({text})" if text else ""


# Limited by ``CUDA_VISIBLE_DEVICES`` and ``GGML_VK_VISIBLE_DEVICES``.

GPU, INTEGRATED = 1, 2
"""GGML_BACKEND_DEVICE_TYPE_… in ggml-backend.h; 0 is the processor."""
KINDS: dict[str, Kind] = {"CUDA": "cuda", "MUSA": "cuda", "ROCm": "rocm", "Vulkan": "vulkan", "MTL": "metal"}


@dataclass(frozen=True)
class Card:
    """One device of llama.cpp other than the processor."""

    name: str
    """ggml's name, such as ``Vulkan0``."""
    description: str
    kind: Kind
    handle: int
    """Lives as long as the process."""


def cards() -> tuple[Card, ...]:
    """Cards with their own memory, else those that share the machine's.

    Omits remote backends. Raises ``ConfigError`` without llama.cpp.
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
    """(free, total) bytes. On CUDA the call takes some hundred megabytes of the card."""
    free, total = ctypes.c_size_t(), ctypes.c_size_t()
    _ggml().ggml_backend_dev_memory(card.handle, ctypes.byref(free), ctypes.byref(total))
    return free.value, total.value


def handles(names: Sequence[str]) -> Any:
    """llama.cpp's zero-terminated array; no names: only the processor.

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


def main() -> None:
    """Print the cards as JSON. Not for CUDA: the query takes memory of the card. Raises ``ConfigError`` if llama.cpp
    cannot be loaded."""
    lines = []
    for card in cards():
        free, total = memory_of(card) if card.kind != "cuda" else (0, 0)
        facts = {"name": card.name, "description": card.description, "kind": card.kind}
        lines.append({**facts, "free": free, "memory": total})
    print(json.dumps({"library": "llama.cpp", "cards": lines}), flush=True)


if __name__ == "__main__":
    main()
