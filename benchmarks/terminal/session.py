"""A program in a pseudo-terminal of 80 × 24: keys flow in, bytes and the moments at which they came flow out.

Nobody answers what the program asks of the terminal, and nobody interprets what it draws: text is looked for between
the escape sequences.
"""

from __future__ import annotations

import fcntl
import os
import pty
import re
import select
import struct
import subprocess
import termios
from collections.abc import Sequence
from contextlib import suppress
from time import perf_counter
from typing import Self

import psutil

COLUMNS, ROWS = 80, 24
PATIENCE = 60.0
"""Seconds after which something that does not come counts as failed."""
QUIET = 0.015
"""Seconds without a byte after which the program has drawn what it had to draw."""
KEPT = 200_000
"""Newest characters that text is looked for in."""
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")


class Session:
    """One program, from its start to its end."""

    def __init__(self, command: Sequence[str]) -> None:
        self._terminal, other = pty.openpty()
        fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM")}
        self.began = perf_counter()
        self._process = subprocess.Popen(
            command,
            stdin=other,
            stdout=other,
            stderr=other,
            start_new_session=True,
            env=environment | {"TERM": "xterm-256color"},
        )
        os.close(other)
        self._seen = b""
        self.received = 0
        """Bytes so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *unused: object) -> None:
        """End it, by force if need be: a benchmark leaves nothing behind."""
        self._process.kill()
        self._process.wait()
        os.close(self._terminal)

    def read(self, timeout: float) -> bytes:
        """What comes next; empty after ``timeout`` seconds. Raises ``RuntimeError`` if the program has ended."""
        if not select.select([self._terminal], [], [], timeout)[0]:
            return b""
        data = b""
        with suppress(OSError):  # Linux says so when the other end is closed
            data = os.read(self._terminal, 65536)
        if not data:
            raise RuntimeError(f"The program ended with {self._process.wait()}: {self._text()[-500:]!r}")
        self.received += len(data)
        self._seen = (self._seen + data)[-KEPT:]
        return data

    def until(self, wanted: str) -> float:
        """Wait for a text that nothing has been drawn over in between; the moment at which it was there.

        Raises ``RuntimeError`` if it does not come.
        """
        deadline = perf_counter() + PATIENCE
        while wanted.encode() not in self._text():
            if perf_counter() > deadline:
                raise RuntimeError(f"The text {wanted!r} never came: {self._text()[-500:]!r}")
            self.read(0.1)
        return perf_counter()

    def settle(self, seconds: float = QUIET) -> None:
        """Read until nothing has come for so long, and forget what was read."""
        while self.read(seconds):
            pass
        self._seen = b""

    def press(self, key: str) -> float:
        """Seconds from a key to the first byte that follows it."""
        self.settle()
        began = perf_counter()
        os.write(self._terminal, key.encode())
        if not self.read(PATIENCE):
            raise RuntimeError(f"Nothing followed the key {key!r}.")
        return perf_counter() - began

    def show(self, key: str, wanted: str) -> float:
        """Seconds from a key to a text that was not there before."""
        self.settle()
        began = perf_counter()
        os.write(self._terminal, key.encode())
        return self.until(wanted) - began

    def watch(self, seconds: float) -> None:
        """Read for so long, as a terminal does."""
        until = perf_counter() + seconds
        while (left := until - perf_counter()) > 0:
            self.read(left)

    @property
    def spent(self) -> float:
        """Processor seconds so far."""
        times = psutil.Process(self._process.pid).cpu_times()
        return float(times.user + times.system)

    @property
    def megabytes(self) -> float:
        """Resident memory."""
        return float(psutil.Process(self._process.pid).memory_info().rss) / 1e6

    def _text(self) -> bytes:
        return _ESCAPES.sub(b"", self._seen)
