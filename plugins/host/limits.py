"""Limits by the operating system, as far as supported; no security boundary."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading

OPEN_FILES = 64 + 8 * 512
"""512 episodes starting a program: three pipes at both ends, and two files."""
_LARGEST_FILE = 256 << 20
_STACK = 9 << 20
"""Address space of a thread's stack on Linux; mostly unused memory."""
_MOSTLY = 0.75
"""A quarter is still free."""
_PR_SET_PDEATHSIG = 1
_FIRST_TO_GO = 500
"""Of 1000: without memory, the kernel kills a plugin before the engine or its workers."""

_lock = threading.Lock()
_memory = 0
"""Bytes of address space without stacks; 0: no bound."""
_threads = _allowed = 0
"""Present threads, and the most so far."""


def apply(memory_mb: int, parent: int, nice: int) -> None:
    """Bound memory, files and priority, and die with the engine.

    ``nice``: 0 to 19. ``parent`` 0: not visible; the process in between ends both.
    """
    global _memory
    import resource

    _bound(resource.RLIMIT_CORE, 0)
    _bound(resource.RLIMIT_NOFILE, OPEN_FILES)
    _bound(resource.RLIMIT_FSIZE, _LARGEST_FILE)
    _bound(resource.RLIMIT_AS, memory_mb << 20, resource.getrlimit(resource.RLIMIT_AS)[1])
    _memory = memory_mb << 20
    with contextlib.suppress(OSError):
        os.nice(nice)
    die_with(parent)


def memory_mb() -> int:
    """The plugin's setting; 0: no bound."""
    return _memory >> 20


def die_with(parent: int) -> None:
    """Die with ``parent`` (0: not visible), and be the first victim without memory."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
            if int(file.read()) < _FIRST_TO_GO:
                file.seek(0)
                file.write(str(_FIRST_TO_GO))
        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if parent and os.getppid() != parent:  # it died before it could be watched
        os._exit(1)


def stacks(more: int) -> None:
    """Stacks do not count towards the plugin's memory."""
    global _threads, _allowed
    with _lock:
        _threads += more
        if not _memory or _threads <= _allowed:
            return
        _allowed = _threads
        import resource

        _bound(resource.RLIMIT_AS, _memory + _allowed * _STACK, resource.getrlimit(resource.RLIMIT_AS)[1])


def full() -> bool:
    """True if most of the plugin's memory is taken: distinguishes piled up memory from one large allocation."""
    import resource

    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            taken = int(file.read().split()[0]) * resource.getpagesize()
    except (OSError, ValueError, MemoryError):
        return False
    bound = resource.getrlimit(resource.RLIMIT_AS)[0]
    return bound != resource.RLIM_INFINITY and taken >= _MOSTLY * bound


def _bound(kind: int, soft: int, hard: int | None = None) -> None:
    import resource

    allowed = resource.getrlimit(kind)[1]
    most = soft if hard is None else hard
    most = most if allowed == resource.RLIM_INFINITY or most == resource.RLIM_INFINITY else min(most, allowed)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(kind, (min(soft, most) if most != resource.RLIM_INFINITY else soft, most))
