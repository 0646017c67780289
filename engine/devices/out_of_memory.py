"""Tells whether an error means that memory has run out, and ends a process for it.

For main memory and that of cards; imports no library.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

from ..errors import OutOfMemory

WORDS = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED")
"""Parts of the messages of torch's allocators and the libraries below, which have no exception of their own for it."""
ONEDNN = ("could not create a primitive", "could not execute a primitive")
"""oneDNN's messages where there is no memory for the code that it compiles, or for its buffers.

Unsupported shapes and types have other messages ("could not create a primitive descriptor …"). A process that may not
run code that it compiles does not use oneDNN, and one that has had this error goes on without it
(``base/kernels.py``).
"""
STATUS = int(errno.ENOMEM)
"""Exit status of a process that ends because memory has run out."""


def ran_out(error: BaseException) -> bool:
    """Whether an error means that memory has run out."""
    if isinstance(error, MemoryError | OutOfMemory) or type(error).__name__ == "OutOfMemoryError":  # torch's own
        return True
    if not isinstance(error, RuntimeError):
        return False
    return str(error) in ONEDNN or any(word in str(error) for word in WORDS)


def as_shortage(error: Exception) -> Exception:
    """``OutOfMemory`` where an error means that memory has run out; any other error as it is."""
    return OutOfMemory(f"{type(error).__name__}: {error}") if ran_out(error) else error


def end_process(reason: str, error: BaseException) -> NoReturn:
    """End the process at once because of ``error``, with the first line of the reason as the last line of the log.

    The exit status is ``STATUS`` where memory has run out, else 1.
    """
    print(reason.splitlines()[0], file=sys.stderr, flush=True)
    os._exit(STATUS if ran_out(error) else 1)
