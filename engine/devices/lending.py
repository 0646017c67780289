"""Two workers lend each other their cores while they have nothing to compute.

Each has a byte in a small shared file. A computing worker looks at the other's byte between two layers, and takes its
cores, too, while it is ``IDLE``. Threads and affinity are changed only for the calling thread.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

AT_WORK, IDLE = 1, 2
"""Values of a byte; 0 before: an absent worker lends nothing."""
SIZE = 2
SLEEPING = {"OMP_WAIT_POLICY": "passive"}
"""Variable for borrowing workers: a waiting thread sleeps. With spinning threads a pass on a busy machine took six
times as long as on one core, and half as long with this."""


@dataclass(frozen=True)
class Loan:
    """A worker's own and borrowable cores."""

    path: str
    place: int
    own: tuple[int, ...]
    other: tuple[int, ...]


class LentCores:
    """One worker's side of a loan; all calls except the constructor come from the computing thread."""

    def __init__(self, loan: Loan, set_threads: Callable[[int], object] = int) -> None:
        self._shared = _shared(loan.path)
        self._loan = loan
        self._set_threads = set_threads
        self._borrows = False
        self.rest()

    def work(self) -> None:
        self._shared[self._loan.place] = AT_WORK

    def rest(self) -> None:
        self._borrow(False)
        self._shared[self._loan.place] = IDLE

    @contextmanager
    def round(self) -> Iterator[None]:
        """Within, and until ``rest``, this worker is at work."""
        self.work()
        yield

    def settle(self, allowed: bool) -> None:
        """Borrow the other worker's cores if it is idle, else give them back; called between two layers.

        ``allowed`` is False if the last bits must repeat.
        """
        self._borrow(allowed and self._shared[1 - self._loan.place] == IDLE)

    def _borrow(self, borrows: bool) -> None:
        if borrows is self._borrows:
            return
        cores = (*self._loan.own, *self._loan.other) if borrows else self._loan.own
        try:
            os.sched_setaffinity(0, cores)  # of the calling thread; its new threads inherit it
        except OSError:
            if borrows:
                return
        self._borrows = borrows
        self._set_threads(len(cores))


def _shared(path: str) -> mmap.mmap | bytearray:
    """The file in memory. Without one (full disk, no shared memory) it is private, and the other never lends."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, SIZE)  # else a write could find the disk full, which ends the process
            return mmap.mmap(file, SIZE)
        finally:
            os.close(file)
    except OSError:
        return bytearray(SIZE)
