"""Two workers on cores of their own lend these to each other while they have nothing to compute.

Each has a byte in a small shared file, which says whether it is at work. Whoever computes looks at the other's byte
between two layers, and takes its cores, too, for as long as it is ``IDLE``: so a worker that comes back has its core
again after some milliseconds. Threads and affinity are changed for the calling thread alone. Knows neither torch nor
tasks.
"""

from __future__ import annotations

import mmap
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

AT_WORK, IDLE = 1, 2
"""What a byte says; before that, 0: a worker that is not there lends nothing.
"""
SIZE = 2
"""Bytes of the file: one for each worker."""
SLEEPING = {"OMP_WAIT_POLICY": "passive"}
"""Variable for workers that borrow: a thread that waits for another one sleeps. Threads that spin instead take the time
of a core that its owner, or another program, uses at that moment: on a busy machine a pass then took six times as long
as on one core, and half as long with this."""


@dataclass(frozen=True)
class Loan:
    """Which cores a worker has, and which it may borrow."""

    path: str
    """The file that both workers share."""
    place: int
    """Which of its bytes is this worker's, 0 or 1."""
    own: tuple[int, ...]
    other: tuple[int, ...]
    """The other worker's cores."""


class LentCores:
    """One worker's side of a loan; all calls come from the thread that computes, except the constructor."""

    def __init__(self, loan: Loan, set_threads: Callable[[int], object] = int) -> None:
        """``set_threads`` says over how many threads what the calling thread computes is divided; who never calls
        ``settle`` lends without borrowing, and needs none."""
        self._shared = _shared(loan.path)
        self._loan = loan
        self._set_threads = set_threads
        self._borrows = False
        self.rest()

    def work(self) -> None:
        """This worker has something to compute: the other one gives its cores back."""
        self._shared[self._loan.place] = AT_WORK

    def rest(self) -> None:
        """This worker has nothing to compute: the other one may use its cores."""
        self._borrow(False)
        self._shared[self._loan.place] = IDLE

    @contextmanager
    def round(self) -> Iterator[None]:
        """Within, and until ``rest``, this worker is at work."""
        self.work()
        yield

    def settle(self, allowed: bool) -> None:
        """Borrow the other worker's cores if it has nothing to do, else give them back; called between two layers.

        ``allowed`` is False for what must have the same last bits each time: they depend on the number of threads.
        """
        self._borrow(allowed and self._shared[1 - self._loan.place] == IDLE)

    def _borrow(self, borrows: bool) -> None:
        if borrows is self._borrows:
            return
        cores = (*self._loan.own, *self._loan.other) if borrows else self._loan.own
        try:
            os.sched_setaffinity(0, cores)  # of the calling thread; those that it starts inherit it
        except OSError:  # a container may have taken a core away since
            if borrows:
                return
        self._borrows = borrows
        self._set_threads(len(cores))


def _shared(path: str) -> mmap.mmap | bytearray:
    """The file in memory; if there can be none (a full disk, a file system that shares no memory), bytes of this
    process's own, in which the other worker never lends anything."""
    try:
        file = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            os.posix_fallocate(file, 0, SIZE)  # else a write could find the disk full, which ends the process
            return mmap.mmap(file, SIZE)
        finally:
            os.close(file)
    except OSError:
        return bytearray(SIZE)
