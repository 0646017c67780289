"""The program in a terminal that understands what it draws: keys flow in, the screen flows out as a person sees it."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial

import pyte

from marlaas.engine.home.paths import Home

PATIENCE = 60.0
_OURS = ("NO_COLOR", "COLORTERM")
"""What the terminal of whoever runs the tests says of itself."""


class Terminal:
    """One program in a pseudo-terminal."""

    def __init__(self, process: subprocess.Popen[bytes], terminal: int, columns: int, rows: int) -> None:
        self.process = process
        self._terminal = terminal
        self.drawn = b""
        """All that the program has sent."""
        self._screen = pyte.Screen(columns, rows)
        self._stream = pyte.ByteStream(self._screen)

    def press(self, keys: str) -> None:
        """Type."""
        os.write(self._terminal, keys.encode())

    def text(self) -> str:
        """What stands on the screen, line by line."""
        return "\n".join(line.rstrip() for line in self._screen.display)

    def until(self, *wanted: str) -> str:
        """The screen as soon as it shows all of these."""
        return self.until_so(lambda text: all(each in text for each in wanted), str(wanted))

    def until_like(self, pattern: str) -> re.Match[str]:
        """The first match of a regular expression, as soon as the screen shows one."""
        found = re.search(pattern, self.until_so(lambda text: bool(re.search(pattern, text)), repr(pattern)))
        assert found
        return found

    def until_so(self, suits: Callable[[str], bool], what: str) -> str:
        """The screen as soon as its text suits; ``what`` says in errors what was waited for."""
        deadline = time.monotonic() + PATIENCE
        while not suits(text := self.text()):
            assert time.monotonic() < deadline, f"{what} never came:\n{text}"
            assert self._read(), f"The program ended with {self.process.poll()} before {what}:\n{text}"
        return text

    def resize(self, columns: int, rows: int) -> None:
        """As when a window is dragged."""
        self._screen.resize(rows, columns)
        fcntl.ioctl(self._terminal, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))

    def suspend(self) -> None:
        """ctrl+z, and a shell that draws over the screen."""
        self.press("\x1a")
        while not os.WIFSTOPPED(os.waitpid(self.process.pid, os.WUNTRACED | os.WNOHANG)[1]):
            self._read()
        self._screen.reset()

    def resume(self) -> None:
        """fg."""
        os.kill(self.process.pid, signal.SIGCONT)

    def close(self) -> None:
        """As when a window is closed, or a connection breaks."""
        if self._terminal >= 0:
            os.close(self._terminal)
        self._terminal = -1

    def end(self) -> int:
        """Read what is left, and wait for the program; its exit code."""
        while self._read():
            pass
        return self.process.wait(PATIENCE)

    def _read(self) -> bool:
        """Draw what has come; False once the program has gone."""
        if not select.select([self._terminal], [], [], 0.2)[0]:
            return True
        data = b""
        with contextlib.suppress(OSError):  # Linux says so when the other end is closed
            data = os.read(self._terminal, 65536)
        self.drawn += data
        self._stream.feed(data)
        return bool(data)


def _log_in(terminal: int) -> None:
    """In the child: its controlling terminal, of whose end it hears whoever started the tests."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
    os.login_tty(terminal)


@contextlib.contextmanager
def terminal(
    home: Home, *words: str, columns: int = 80, rows: int = 24, environment: Mapping[str, str] | None = None
) -> Iterator[Terminal]:
    """``marlaas`` on a home, as its users start it, with these variables; killed at the end if it still runs."""
    mine, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", rows, columns, 0, 0))
    inherited = {name: value for name, value in os.environ.items() if name not in _OURS}
    command = [sys.executable, "-P", "-m", "marlaas.app.cli.main", *words]
    process = subprocess.Popen(
        command,
        preexec_fn=partial(_log_in, other),
        env=inherited
        | {"TERM": "xterm-256color", "XDG_CONFIG_HOME": str(home.root / "config"), "COLUMNS": "80"}
        | {"MARLAAS_HOME": str(home.root), **(environment or {})},
    )
    os.close(other)
    screen = Terminal(process, mine, columns, rows)
    try:
        yield screen
    finally:
        process.kill()
        process.wait()
        screen.close()
