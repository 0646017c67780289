"""Loads llama.cpp's low-level functions and keeps its log quiet, but for the last errors, which go into messages."""

from __future__ import annotations

import ctypes
from collections import deque
from functools import cache
from typing import Any

from ...devices import llama_build, why_missing
from ...errors import ConfigError

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
