"""A lock that one process at a time holds, so that two ``make`` at once do not write into the same folder.

The kernel drops it with its process, however that ends. Standard library only.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from . import steps

POLL = 0.2
"""Seconds between two tries."""


@contextmanager
def locked(path: Path, waiting: str) -> Iterator[None]:
    """Hold the lock in the file ``path`` while the block runs; ``waiting`` is printed while another process has it.

    If the file system knows no locks, the block runs without one.
    """
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    began, shown = time.monotonic(), -steps.TICK
    while True:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if path.exists() and os.path.samestat(os.fstat(file), os.stat(path)):  # nobody has deleted it meanwhile
                os.truncate(file, 0)
                os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
                break
        except BlockingIOError:
            waited = time.monotonic() - began
            if waited - shown >= steps.TICK and waited > POLL:  # who only looks has it for a moment
                shown, process = waited, holder(path)
                print(f"  {waiting}{f' (process {process})' if process else ''}, {steps.minutes(waited)} …", flush=True)
        except OSError:
            break
        os.close(file)
        time.sleep(POLL)
    try:
        yield
    finally:
        os.close(file)


def holder(path: Path) -> int | None:
    """The id of the process that holds the lock, 0 if that cannot be read; None if nobody does."""
    with suppress(OSError), open(path, encoding="ascii", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = file.read(32).strip()
            return int(text) if text.isdigit() else 0
    return None
