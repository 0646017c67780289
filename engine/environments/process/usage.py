"""What the operating system says of a process of ours, or of a thread in it: computing, and waiting for a core.

Linux says it in ``/proc``. Other systems do not: there, all is 0.
"""

from __future__ import annotations

import os
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int | None) -> float:
    """Processor seconds that the threads of a process have used so far; 0 where that is not known."""
    if pid is None:
        return 0.0
    fields = _fields(Path(f"/proc/{pid}/stat"))
    return (int(fields[11]) + int(fields[12])) / _TICKS if fields else 0.0


def delayed_seconds(pid: int | None) -> float:
    """Seconds that the main thread of a process has waited for a core so far; 0 where that is not known."""
    if pid is None:
        return 0.0
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def resident_bytes(pid: int) -> int:
    """Memory that a process takes now; 0 where that is not known."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


def thread_seconds(pid: int) -> dict[int, float]:
    """Processor seconds of each thread of a process so far, by id; empty where they are not known."""
    try:
        threads = [int(name) for name in os.listdir(f"/proc/{pid}/task")]
    except OSError:
        return {}
    found = {thread: _fields(Path(f"/proc/{pid}/task/{thread}/stat")) for thread in threads}
    return {thread: (int(fields[11]) + int(fields[12])) / _TICKS for thread, fields in found.items() if fields}


def _fields(path: Path) -> list[str]:
    """The fields of such a file after the program's name, which may hold any character."""
    try:
        return path.read_bytes().rpartition(b")")[2].decode().split()
    except (OSError, UnicodeDecodeError):
        return []
