"""Checks that a plugin's process runs, with figures of the operating system."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .wire import Beat, Place, decode_beat

# Linux has these figures in ``/proc``. On other systems all are 0.

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int | None) -> float:
    """Processor seconds that the threads of a process have used so far; 0 if unknown."""
    if pid is None:
        return 0.0
    try:  # the program's name may hold any character
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, IndexError):
        return 0.0


def delayed_seconds(pid: int | None) -> float:
    """Seconds that the main thread of a process has waited for a core so far; 0 if unknown."""
    if pid is None:
        return 0.0
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def resident_bytes(pid: int) -> int:
    """Memory of a process now; 0 if unknown."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


# Pings a plugin's interpreter and judges silence.
#
# A thread answers on its own connection, so an answer does not wait for episodes. Silence is judged by processor time:
# on a busy machine a process computes nothing, and is not blamed.

INTERRUPTED_AFTER = 6.0
"""Processor seconds of silence after which compiled code is interrupted, if possible."""
HUNG_AFTER = 20.0
"""Processor seconds of silence after which a process counts as hung."""
PER_EPISODE = 0.05
"""Processor seconds more for each running episode. Threads take turns every 5 ms in no order; the answering one has had
its turn within ten rounds, except once in 20,000 times.
"""
STILL_AFTER = 180.0
"""Seconds of silence without any computing: the process may wait for ever with the interpreter locked. On any usable
machine a thread gets a core within minutes.
"""
_MOST_READ = 64 << 10
_LONGEST = 32 << 10
"""Bytes of an answer: a watch names twenty lines."""


@dataclass(frozen=True)
class Load:
    """A process's figures of its last beat; all zero while nothing runs in it."""

    late: float = 0.0
    """Largest delay of its loop since the beat before, in seconds."""
    busy: float = 0.0
    """Processor seconds per second since the beat before: above 1 with several threads."""
    asleep: float = 0.0
    """Seconds per second in which an episode held the loop, or a score the process, without computing: it sleeps or
    waits.
    """


Verdict = Literal["", "interrupt", "hung", "still"]


def judged(
    wall: float, computed: float, episodes: int, allowed: float = 0.0
) -> Literal["", "interrupt", "hung", "still"]:
    """What to do about a process that was silent for ``wall`` seconds and ``computed`` processor seconds. Pure.

    ``allowed``: seconds that its only request may take; 0 if it runs ``episodes``. Compiled code that holds the
    interpreter is interrupted; a process is hung if its interpreter will not run again.
    """
    if computed >= max(HUNG_AFTER, 2 * allowed) + PER_EPISODE * episodes:
        return "hung"
    if wall >= max(STILL_AFTER, 10 * allowed):
        return "still"
    return "interrupt" if computed >= max(INTERRUPTED_AFTER, allowed) else ""


class Pulse:
    """The engine's end of that connection. Its input may be anything."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._rest = b""
        self._beat: Beat | None = None
        self._seen: tuple[Place, ...] | None = None

    def ask(self) -> None:
        self._send(b"?")

    def answer(self) -> Beat | None:
        self._take_in()
        beat, self._beat = self._beat, None
        return beat

    def watch(self) -> None:
        self._seen = None
        self._send(b"+")

    def end_watch(self) -> None:
        self._send(b"-")

    def watched(self) -> tuple[Place, ...] | None:
        self._take_in()
        return self._seen

    def close(self) -> None:
        self.connection.close()

    def _send(self, wish: bytes) -> None:
        with contextlib.suppress(OSError):
            self.connection.send(wish)

    def _take_in(self) -> None:
        lines = (self._rest + self._read()).split(b"\n")
        self._rest = lines.pop()[-_LONGEST:]
        for beat in filter(None, map(decode_beat, lines[-10:])):
            self._beat = beat
            self._seen = self._seen if beat.watched is None else beat.watched

    def _read(self) -> bytes:
        try:
            return self.connection.recv(_MOST_READ)
        except OSError:
            return b""
