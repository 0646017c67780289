"""Keeps memory that a pass has freed for the next one, instead of giving it back to the system in between."""

from __future__ import annotations

import ctypes

M_TRIM_THRESHOLD, M_MMAP_THRESHOLD, M_ARENA_MAX = -1, -3, -8
LARGEST = 32 << 20
"""glibc maps blocks above this size apart, whatever it is told."""


def keep_freed_memory() -> None:
    """For this process. Every step frees tens of megabytes and asks for them again: without this, a page fault for each
    four kilobytes, a third of a step's time. Does nothing where the C library is not glibc."""
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(M_MMAP_THRESHOLD, LARGEST)
        tune(M_TRIM_THRESHOLD, (1 << 31) - 1)
        # The trainer's thread would have a heap of its own, in pieces of 64 megabytes into which its blocks fit badly.
        tune(M_ARENA_MAX, 1)
