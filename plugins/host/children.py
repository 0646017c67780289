"""Reaps programs that an environment started and never waited for: each ended one keeps a process table entry.

No exit code is lost. A program is not reaped while an episode runs that was running when its end was first seen. One
with a ``subprocess.Popen`` object is polled through that object, which keeps the code. Any other code is kept for a
later ``os.waitpid``, as in ``multiprocessing`` and asyncio.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakValueDictionary

from ..sandbox_supervisor import children

_LOOKS = 4
"""Ticks between a program's end and its reaping: a waiting caller is faster."""

_MOST_CODES = 4096

_programs: WeakValueDictionary[int, subprocess.Popen[Any]] = WeakValueDictionary()
_init = subprocess.Popen.__init__
_codes: dict[int, int] = {}
_waitpid = os.waitpid


def _remembering(self: subprocess.Popen[Any], *arguments: Any, **options: Any) -> None:
    _init(self, *arguments, **options)
    _programs[self.pid] = self


def _waiting(pid: int, options: int, /) -> tuple[int, int]:
    try:
        return _waitpid(pid, options)
    except ChildProcessError:
        if pid not in _codes:
            raise
        return pid, _codes.pop(pid)


def keep_codes() -> None:
    """From now on, callers that wait for a reaped program get its status."""
    subprocess.Popen.__init__ = _remembering  # type: ignore[method-assign]
    os.waitpid = _waiting


class Reaper:
    """Finds the children that have ended, tick by tick."""

    def __init__(self, playing: Callable[[], Collection[int]]) -> None:
        self._playing = playing
        self._found: dict[int, tuple[set[int], int]] = {}
        """Ended children: the episodes that may still wait for them, and the ticks since."""

    def tick(self) -> bool:
        """Reap the children that nobody can be waiting for; returns True if some are left."""
        ended = _ended_children()
        playing = set(self._playing()) if ended else set()
        for pid in self._found.keys() - ended:
            del self._found[pid]
        for pid in ended:
            waiting, looks = self._found.get(pid, (playing, 0))
            waiting = waiting & playing
            self._found[pid] = waiting, looks + 1
            if not waiting and looks >= _LOOKS:
                _reap(pid)
        return bool(ended)


def _reap(pid: int) -> None:
    known = _programs.get(pid)
    if known is not None and known.returncode is None:
        known.poll()
        return
    with contextlib.suppress(ChildProcessError):  # another caller was faster
        ended, code = _waitpid(pid, os.WNOHANG)
        if ended:
            _codes[pid] = code
    while len(_codes) > _MOST_CODES:
        del _codes[next(iter(_codes))]


def _ended_children() -> set[int]:
    if sys.platform != "linux":
        return set()
    try:
        if os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT) is None:
            return set()
    except ChildProcessError:
        return set()
    return {pid for pid in children() if _ended(pid)}


def _ended(pid: int) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb", buffering=0) as file:
            return file.read().rpartition(b")")[2].split()[0] == b"Z"
    except (OSError, IndexError):
        return False
