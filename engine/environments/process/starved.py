"""How long a process has waited for a core: time that others had, and that no time limit may count.

Linux says it of every thread (https://docs.kernel.org/scheduler/sched-stats.html, ``/proc/<pid>/schedstat``); elsewhere
nothing is known of it, and the wall's time counts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from pathlib import Path

PROC = Path("/proc")
_NANOSECONDS = 1e-9


def waited(pid: int, proc: Path = PROC) -> float:
    """Seconds that the threads of a process, and those of all that it started, have waited for a core so far.

    What has ended by now is not counted; 0 where the system does not tell.
    """
    return sum(_of_thread(thread) for process in _tree(pid, proc) for thread in _threads(process, proc))


def _tree(pid: int, proc: Path) -> Iterator[int]:
    """The process, then its children and theirs."""
    left = deque((pid,))
    while left:
        process = left.popleft()
        yield process
        for thread in _threads(process, proc):
            left.extend(int(word) for word in _read(thread / "children").split())


def _threads(process: int, proc: Path) -> list[Path]:
    try:
        return list((proc / str(process) / "task").iterdir())
    except OSError:  # it has ended
        return []


def _of_thread(thread: Path) -> float:
    words = _read(thread / "schedstat").split()
    return int(words[1]) * _NANOSECONDS if len(words) == 3 else 0.0


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""
