"""Tells a person at a terminal what is being loaded, and for how many seconds by now.

One line of standard error, which is written over each second and is gone in the end. With ``--plain`` it is a line
at the beginning and one every ten seconds. In a pipe or a file, where nobody watches, it is silent or a line.
"""

from __future__ import annotations

import shutil
import sys
import threading
import time
from types import TracebackType

from .. import output
from ..words.format import cells, clip, line

_INTERVAL = 1.0
_HEARD = 10.0
"""Seconds between two lines for somebody who hears them."""


class Waiting:
    """Shows ``what`` from ``begin`` until ``end``, or while a block runs. ``what``: Loading arithmetic."""

    def __init__(self, what: str, piped: bool = False) -> None:
        """``piped``: whether a pipe gets a line as well."""
        self._what = line(what)
        self._piped = piped
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._began = 0.0
        self._drawn = 0
        """Cells of the line that is shown."""

    def __enter__(self) -> Waiting:
        self.begin()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self.end()

    def begin(self) -> None:
        """Show it at once, and go on in a thread that does not outlive the program."""
        self._began = time.monotonic()
        if not sys.stderr.isatty():
            self._ended.set()
            if self._piped:
                output.talk(f"{self._what} …")
            return
        self._draw()
        threading.Thread(target=self._run, name="waiting", daemon=True).start()

    def end(self) -> None:
        """Remove the line; may be called again."""
        with self._lock:
            self._ended.set()
            self._wipe()

    def say(self, text: str) -> None:
        """Print a line of its own above it."""
        with self._lock:
            self._wipe()
            output.talk(text)
        if not self._ended.is_set() and not output.is_plain():
            self._draw()

    def _run(self) -> None:
        while not self._ended.wait(_HEARD if output.is_plain() else _INTERVAL):
            self._draw()

    def _draw(self) -> None:
        if output.is_plain():
            self._tell()
            return
        seconds = int(time.monotonic() - self._began)
        room = shutil.get_terminal_size().columns - 1
        text = clip(f"{self._what} …{f' {seconds} s' if seconds else ''}", room)
        with self._lock:
            if self._ended.is_set():
                return
            self._wipe()
            self._drawn = cells(text)
            print(text, end="", file=sys.stderr, flush=True)

    def _tell(self) -> None:
        seconds = int(time.monotonic() - self._began)
        with self._lock:
            if not self._ended.is_set():
                output.talk(f"{self._what}: {seconds} seconds so far." if seconds else f"{self._what} ...")

    def _wipe(self) -> None:
        if self._drawn:
            print(f"\r{' ' * self._drawn}\r", end="", file=sys.stderr, flush=True)
            self._drawn = 0
