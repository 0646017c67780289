"""Limits on this process that the operating system enforces.

It is no security boundary: a plugin runs with the user's rights. Every limit is best effort: what a platform lacks is
left out.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys

_OPEN_FILES = 256
_LARGEST_FILE = 256 << 20
_PR_SET_PDEATHSIG = 1
_FIRST_TO_GO = 500
"""Of 1000: when the machine runs out of memory, the kernel kills a plugin before the engine or its workers."""


def apply(memory_mb: int, parent: int, nice: int) -> None:
    """Bound memory, files and priority, and die with the engine, which is ``parent``.

    ``nice``, 0 to 19: how far others go first on the cores. A ``parent`` of 0 is an engine that cannot be seen from
    here: the process between it and this one ends both.
    """
    import resource

    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_FSIZE: _LARGEST_FILE,
        resource.RLIMIT_AS: memory_mb << 20,
    }
    for kind, bound in bounds.items():
        with contextlib.suppress(ValueError, OSError):
            resource.setrlimit(kind, (bound, bound))
    with contextlib.suppress(OSError):
        os.nice(nice)
    if sys.platform == "linux":
        _go_first()
        _die_with_parent()
    if parent and os.getppid() != parent:  # it died before it could be watched
        os._exit(1)


def _go_first() -> None:
    with contextlib.suppress(OSError, ValueError), open("/proc/self/oom_score_adj", "r+", encoding="ascii") as file:
        if int(file.read()) < _FIRST_TO_GO:
            file.seek(0)
            file.write(str(_FIRST_TO_GO))


def _die_with_parent() -> None:
    import ctypes

    with contextlib.suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
