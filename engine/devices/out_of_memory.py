"""Whether memory has run out, and how a process says that it ends for it.

Errors flow in, yes or no flows out, or the process's end. Main memory and that of cards alike; imports no library.
"""

from __future__ import annotations

import errno
import os
import sys
from typing import NoReturn

from ..errors import OutOfMemory

WORDS = ("out of memory", "not enough memory", "can't allocate memory", "ALLOC_FAILED")
"""In messages of torch's allocators and of the libraries below it, which have no exception of their own for it."""
ONEDNN = ("could not create a primitive", "could not execute a primitive")
"""All that oneDNN says where there is no room for the code that it compiles, or for what that computes with.

Shapes and types that it does not know end in other sentences ("could not create a primitive descriptor …"). A process
that may not run what it compiles does not multiply with it, and one that has heard this goes on without it
(``base/kernels.py``).
"""
STATUS = int(errno.ENOMEM)
"""Exit status of a process that ends for want of memory."""


def ran_out(error: BaseException) -> bool:
    """Whether an error says that memory is short."""
    if isinstance(error, MemoryError | OutOfMemory) or type(error).__name__ == "OutOfMemoryError":  # torch's own
        return True
    if not isinstance(error, RuntimeError):
        return False
    return str(error) in ONEDNN or any(word in str(error) for word in WORDS)


def as_shortage(error: Exception) -> Exception:
    """``OutOfMemory`` where an error says that memory is short; any other error as it is."""
    return OutOfMemory(f"{type(error).__name__}: {error}") if ran_out(error) else error


def end_process(reason: str, error: BaseException) -> NoReturn:
    """Leave at once for ``error``, with the first line of the reason as the last one of the log.

    The exit status is ``STATUS`` where memory has run out, else 1.
    """
    print(reason.splitlines()[0], file=sys.stderr, flush=True)
    os._exit(STATUS if ran_out(error) else 1)
