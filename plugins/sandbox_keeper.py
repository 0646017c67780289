"""``python -P -s sandbox_keeper.py SECONDS MEMORY_MB PARENT``: started by ``sandbox`` in the folder of a ``main.py``.

It forks. The child takes its limits upon itself and becomes the program; the parent, its keeper, waits for it, and then
kills whatever the program has started. The keeper's own end tells how it went: by SIGALRM where the time was up, else
with the program's exit code, or with 128 + n where signal n ended the program. Nothing of marlaas is imported here.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from time import monotonic
from types import FrameType, ModuleType

_LARGEST_FILE = 16 << 20
_OPEN_FILES = 64
_MORE_PROCESSES = 128
"""And threads, all together."""
_SWEEPING = 1.0
"""Seconds; whatever multiplies faster than it is killed is left to ``sandbox``, which ends the whole group at once."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36


class Ended(Exception):
    """The time is up, or nobody waits for the result."""


def main() -> None:
    """Keep the program, or be it."""
    seconds, memory_mb, parent = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGTERM)
    _tell_kernel(_PR_SET_CHILD_SUBREAPER, 1)  # what a program leaves behind becomes a child of its keeper
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGALRM, _end)
    keeper, program = os.getpid(), os.fork()
    if program:
        _keep(program, seconds)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != keeper:
        os._exit(1)
    _limit(int(seconds) + 2, memory_mb)
    _run()


def _end(number: int, _frame: FrameType | None) -> None:
    raise Ended(number)


def _keep(program: int, seconds: float) -> None:
    """Wait for the program, clear up, and end as it did."""
    late = False
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        code = os.waitstatus_to_exitcode(os.waitpid(program, 0)[1])
        signal.setitimer(signal.ITIMER_REAL, 0)
    except Ended as end:
        late = end.args[0] == signal.SIGALRM
        code = -signal.SIGTERM
        with contextlib.suppress(OSError):
            os.kill(program, signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL if late else signal.SIG_IGN)
    _sweep()
    if late:
        os.kill(os.getpid(), signal.SIGALRM)
    os._exit(code if code >= 0 else 128 - code)


def _sweep() -> None:
    """Kill all descendants: those of whoever is killed become children of this process, and are found in turn."""
    until = monotonic() + _SWEEPING
    while (children := _children()) and monotonic() < until:
        for pid in children:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        for pid in children:
            with contextlib.suppress(OSError):
                os.waitpid(pid, 0)


def _children() -> list[int]:
    """Processes whose parent is this one; none where the system does not tell."""
    found = []
    for name in os.listdir("/proc") if sys.platform == "linux" else ():
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{int(name)}/stat", "rb") as file:
                parent = file.read().rpartition(b")")[2].split()[1]  # the name before may hold anything
            if int(parent) == os.getpid():
                found.append(int(name))
    return found


def _tell_kernel(option: int, value: int) -> None:
    """``prctl``, where there is one."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _limit(cpu_seconds: int, memory_mb: int) -> None:
    """Bound what one process of the program may have; what a platform lacks is left out."""
    import resource

    bounds = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_CPU: cpu_seconds,
        resource.RLIMIT_FSIZE: _LARGEST_FILE,
        resource.RLIMIT_NOFILE: _OPEN_FILES,
        resource.RLIMIT_AS: memory_mb << 20,
    }
    if sys.platform == "linux":
        bounds[resource.RLIMIT_NPROC] = _threads_of(os.getuid()) + _MORE_PROCESSES  # the limit counts all of the user's
    for kind, bound in bounds.items():
        with contextlib.suppress(OSError, ValueError):
            hard = resource.getrlimit(kind)[1]
            allowed = bound if hard == resource.RLIM_INFINITY else min(bound, hard)
            resource.setrlimit(kind, (allowed, allowed))


def _threads_of(user: int) -> int:
    found = 0
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError):
            if os.stat(f"/proc/{int(name)}").st_uid == user:
                found += len(os.listdir(f"/proc/{name}/task"))
    return found


def _run() -> None:
    """Be the program: what it prints, raises and returns is as if it had been started by its name."""
    with open("main.py", "rb") as file:
        source = file.read()
    module = sys.modules["__main__"] = ModuleType("__main__")
    sys.argv[:] = ["main.py"]
    try:
        exec(compile(source, "main.py", "exec"), module.__dict__)
    except Exception as error:
        import traceback

        below = error.__traceback__.tb_next if error.__traceback__ is not None else None  # without this file's frame
        traceback.print_exception(type(error), error, below)
        sys.exit(1)


if __name__ == "__main__":
    main()
