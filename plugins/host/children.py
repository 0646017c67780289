"""Reaps programs that an environment started and never waited for: ended, each of them keeps an entry of the system.

Nobody loses an exit code. A program is not reaped while an episode runs that ran when it was first seen to have ended.
One that a ``subprocess.Popen`` stands for is asked through that object, which keeps the code. The code of any other is
kept for whoever calls ``os.waitpid`` later, as ``multiprocessing`` and asyncio do.
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
"""Ticks for which a program must have ended before it is reaped: whoever waits for it does so sooner."""

_MOST_CODES = 4096

_programs: WeakValueDictionary[int, subprocess.Popen[Any]] = WeakValueDictionary()
_init = subprocess.Popen.__init__
_codes: dict[int, int] = {}
"""How programs ended that were reaped here, as the system says it; the newest ones."""
_waitpid = os.waitpid


def _remembering(self: subprocess.Popen[Any], *arguments: Any, **options: Any) -> None:
    """Call ``Popen.__init__``, and remember which object stands for the process."""
    _init(self, *arguments, **options)
    _programs[self.pid] = self


def _waiting(pid: int, options: int, /) -> tuple[int, int]:
    """Call ``os.waitpid``, also for a program that was reaped here."""
    try:
        return _waitpid(pid, options)
    except ChildProcessError:
        if pid not in _codes:
            raise
        return pid, _codes.pop(pid)


def keep_codes() -> None:
    """From now on, whoever waits for a program that was reaped here learns how it ended."""
    subprocess.Popen.__init__ = _remembering  # type: ignore[method-assign]
    os.waitpid = _waiting


class Reaper:
    """Finds the children that have ended, tick by tick."""

    def __init__(self, playing: Callable[[], Collection[int]]) -> None:
        """``playing``: the episodes in progress, by number."""
        self._playing = playing
        self._found: dict[int, tuple[set[int], int]] = {}
        """Children that have ended: the episodes that may still wait for them, and the ticks since."""

    def tick(self) -> bool:
        """Look at the children, and reap those for which nobody can be waiting; returns whether some are left."""
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
    with contextlib.suppress(ChildProcessError):  # somebody was quicker
        ended, code = _waitpid(pid, os.WNOHANG)
        if ended:
            _codes[pid] = code
    while len(_codes) > _MOST_CODES:
        del _codes[next(iter(_codes))]


def _ended_children() -> set[int]:
    """Children of this process that have ended and that nobody has waited for."""
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
