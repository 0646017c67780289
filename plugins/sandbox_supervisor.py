"""Supervises one program: ``python -P -s sandbox_supervisor.py SECONDS MEMORY_MB PARENT GROUP``.

It forks. The child takes its limits upon itself and becomes the program; the parent, its supervisor, waits for it, and
then kills whatever the program has started. The supervisor's own exit tells how it went: by SIGALRM where the time was
up, else with the program's exit code, or with 128 + n where signal n ended the program.

GROUP is the control group for the program, or empty: see ``cgroups``. Nothing of marlaas is imported here. The program
may signal or kill its supervisor. What it leaves then becomes a child of the process that started the supervisor, which
recognises it by a limit that no program can raise again, and kills it with the functions of this file.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
from collections.abc import Callable, Iterable, Iterator
from time import monotonic
from types import FrameType, ModuleType

_LARGEST_FILE = 16 << 20
_OPEN_FILES = 64
MORE_PROCESSES = 128
"""Most processes of a program, threads included."""
_SWEEPING = 1.0
"""Seconds; what multiplies faster than it is killed is left to ``sandbox``, which tries again."""
_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PR_SET_NO_NEW_PRIVS = 38


class Ended(Exception):
    """The time is up, or nobody waits for the result."""


def main() -> None:
    """Fork: the child becomes the program, the parent its keeper."""
    seconds, memory_mb, parent, group = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4]
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGTERM)
    adopt_orphans(True)
    if os.getppid() != parent:
        os._exit(1)
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGALRM, _end)
    supervisor, program = os.getpid(), os.fork()
    if program:
        _keep(program, seconds, group)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    _tell_kernel(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != supervisor:
        os._exit(1)
    _tell_kernel(_PR_SET_NO_NEW_PRIVS, 1)  # else it could start something as another user, which nobody here can kill
    if group:
        _tell_group(group, "cgroup.procs", b"0")
    _limit(int(seconds) + 2, memory_mb)
    _run()


def _end(number: int, _frame: FrameType | None) -> None:
    raise Ended(number)


def _keep(program: int, seconds: float, group: str) -> None:
    """Wait for the program, clear up, and exit as it did."""
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
    if group:
        _tell_group(group, "cgroup.kill", b"1")
    sweep()
    if late:
        os.kill(os.getpid(), signal.SIGALRM)
    os._exit(code if code >= 0 else 128 - code)


def adopt_orphans(adopt: bool) -> None:
    """Whether orphaned descendants of this process become its children, where the system can do that."""
    _tell_kernel(_PR_SET_CHILD_SUBREAPER, int(adopt))


def sweep(chosen: Callable[[int], bool] = lambda pid: True) -> None:
    """Kill the ``chosen`` children and all below them: orphans of those that are killed become children in their turn.

    All are stopped before the first is killed: a stopped process still counts, so no new one can take its place.
    """
    until = monotonic() + _SWEEPING
    while (heads := [pid for pid in children() if chosen(pid)]) and monotonic() < until:
        stopped: set[int] = set()
        while (new := set(_with_descendants(heads)) - stopped) and monotonic() < until:
            _signal(new, signal.SIGSTOP)
            stopped |= new
        _signal(stopped, signal.SIGKILL)
        for pid in heads:
            with contextlib.suppress(OSError):
                os.waitpid(pid, os.WNOHANG)


def _signal(pids: Iterable[int], number: int) -> None:
    for pid in pids:
        with contextlib.suppress(OSError):
            os.kill(pid, number)


def _with_descendants(pids: Iterable[int]) -> Iterator[int]:
    waiting = list(pids)
    while waiting:
        yield (pid := waiting.pop())
        waiting += children(pid)


def stray(pid: int) -> bool:
    """Whether a child of this process is, or descends from, a program whose supervisor died.

    Only such a process has so low a hard limit of open files, and only root could raise that limit again.
    """
    import resource

    try:
        return resource.prlimit(pid, resource.RLIMIT_NOFILE)[1] <= _OPEN_FILES
    except OSError:  # it has ended
        return False


def children(parent: int | None = None) -> list[int]:
    """Processes whose parent is ``parent``, by default this process; none where the system does not tell."""
    if sys.platform != "linux":
        return []
    parent, found = parent or os.getpid(), b""
    try:  # quick, because a program may go on in a new process thousands of times a second
        for thread in os.listdir(f"/proc/{parent}/task"):
            with open(f"/proc/{parent}/task/{thread}/children", "rb") as file:
                found += file.read()
    except OSError:  # it or one of its threads has ended, or the kernel keeps no such lists
        return children_by_search(parent) if os.path.exists(f"/proc/{parent}") else []
    return [int(pid) for pid in found.split()]


def children_by_search(parent: int) -> list[int]:
    """The same from all processes of the system, where the kernel keeps no lists of children."""
    found = []
    for name in os.listdir("/proc"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            with open(f"/proc/{int(name)}/stat", "rb") as file:
                above = file.read().rpartition(b")")[2].split()[1]  # the name before it may hold any character
            if int(above) == parent:
                found.append(int(name))
    return found


def _tell_kernel(option: int, value: int) -> None:
    """Call ``prctl``, where there is one."""
    if sys.platform == "linux":
        import ctypes

        with contextlib.suppress(OSError, AttributeError):
            ctypes.CDLL(None).prctl(option, value, 0, 0, 0)


def _tell_group(group: str, name: str, value: bytes) -> None:
    """Write to a file of a control group; a failure is ignored."""
    with contextlib.suppress(OSError), open(os.path.join(group, name), "wb", buffering=0) as file:
        file.write(value)


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
        bounds[resource.RLIMIT_NPROC] = _threads_of(os.getuid()) + MORE_PROCESSES  # the limit counts all of the user
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
    """Run the program: it prints, raises and exits as if it had been started by its name."""
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
