"""Settings of the C library's heap."""

from __future__ import annotations

import ctypes

M_ARENA_MAX = -8


def keep_to_one_heap() -> None:
    """Let all threads of this process take memory from one heap, if its C library is glibc.

    Otherwise each of a dozen waiting threads keeps its own heap (glibc's arenas) at its largest size.
    """
    tune = getattr(ctypes.CDLL(None), "mallopt", None)
    if tune is not None:
        tune(M_ARENA_MAX, 1)
