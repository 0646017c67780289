"""Whether a plugin's process runs, and what the operating system says of it."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from .wire import Beat, Place, decode_beat

# What the operating system says of a process of ours, or of a thread in it: computing, and waiting for a core.
#
# Linux says it in ``/proc``. Other systems do not: there, all is 0.

_TICKS = os.sysconf("SC_CLK_TCK")


def processor_seconds(pid: int | None) -> float:
    """Processor seconds that the threads of a process have used so far; 0 if that is not known."""
    if pid is None:
        return 0.0
    try:  # the program's name may hold any character
        fields = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS
    except (OSError, IndexError):
        return 0.0


def delayed_seconds(pid: int | None) -> float:
    """Seconds that the main thread of a process has waited for a core so far; 0 if that is not known."""
    if pid is None:
        return 0.0
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return 0.0


def resident_bytes(pid: int) -> int:
    """Memory that a process takes now; 0 if that is not known."""
    try:
        return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, IndexError, ValueError):
        return 0


# Asks a plugin's process whether its interpreter runs, and judges silence.
#
# A thread of the process answers on its own connection, so an answer does not wait for what the episodes
# compute. Silence is judged by what the process computed meanwhile: on a busy machine it computes nothing, and is
# left alone.

INTERRUPTED_AFTER = 6.0
"""Processor seconds of silence after which compiled code is interrupted, if it can be."""
HUNG_AFTER = 20.0
"""Processor seconds of silence after which a process counts as hung."""
PER_EPISODE = 0.05
"""Processor seconds more for each running episode. Threads take turns at the interpreter every 5 ms, in no order; the
one that answers has had its turn within ten rounds of them but once in 20,000 times."""
STILL_AFTER = 180.0
"""Seconds of silence in which the process need not have computed: it may hold the interpreter and wait for ever. A
thread that wants to run for a millisecond gets a core within minutes on any machine that is still of use."""
_MOST_READ = 64 << 10
_LONGEST = 32 << 10
"""Bytes of an answer: what was seen of the loop names twenty lines."""


@dataclass(frozen=True)
class Load:
    """What a process said of itself at its last beat; all zero while nothing runs in it."""

    late: float = 0.0
    """The most seconds by which its loop was late since the beat before."""
    busy: float = 0.0
    """Processor seconds that the process used per second since the beat before: above 1 with several threads."""
    asleep: float = 0.0
    """Seconds per second since then in which an episode kept the loop, or a score the process, and nothing computed: it
    waits for an answer from elsewhere, or sleeps."""


Verdict = Literal["", "interrupt", "hung", "still"]


def judged(
    wall: float, computed: float, episodes: int, allowed: float = 0.0
) -> Literal["", "interrupt", "hung", "still"]:
    """What to do about a process that was silent for so long, by the wall clock and by its processor time. Pure.

    ``episodes`` run in it. ``allowed``: seconds that its only request may take; 0 if it runs episodes. Compiled code
    that keeps the interpreter is interrupted; a process is hung if its interpreter will not run again.
    """
    if computed >= max(HUNG_AFTER, 2 * allowed) + PER_EPISODE * episodes:
        return "hung"
    if wall >= max(STILL_AFTER, 10 * allowed):
        return "still"
    return "interrupt" if computed >= max(INTERRUPTED_AFTER, allowed) else ""


class Pulse:
    """The engine's end of that connection. What comes from there may be anything."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self.connection = connection
        self._rest = b""
        self._beat: Beat | None = None
        self._seen: tuple[Place, ...] | None = None

    def ask(self) -> None:
        """Ask once more."""
        self._send(b"?")

    def answer(self) -> Beat | None:
        """The newest answer since the last call, if there was one."""
        self._take_in()
        beat, self._beat = self._beat, None
        return beat

    def watch(self) -> None:
        """Have the process begin to look at what keeps its loop busy."""
        self._seen = None
        self._send(b"+")

    def end_watch(self) -> None:
        """Have it end that, and say what it saw: see ``watched``."""
        self._send(b"-")

    def watched(self) -> tuple[Place, ...] | None:
        """What it saw, once it has said so."""
        self._take_in()
        return self._seen

    def close(self) -> None:
        """Close the connection."""
        self.connection.close()

    def _send(self, wish: bytes) -> None:
        with contextlib.suppress(OSError):  # its end is reported elsewhere
            self.connection.send(wish)

    def _take_in(self) -> None:
        """Read what has come."""
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
