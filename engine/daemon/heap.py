"""Where the engine's threads take memory from."""

from __future__ import annotations

import ctypes

M_ARENA_MAX = -8


def keep_to_one_heap() -> None:
    """Let all threads of this process take memory from one heap.

    Otherwise each of a dozen threads that wait for disks and plugins has a heap of its own (glibc's arenas), and keeps
    what it once needed. They hardly ever compute at the same time. Does nothing if the C library is not glibc.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(M_ARENA_MAX, 1)
