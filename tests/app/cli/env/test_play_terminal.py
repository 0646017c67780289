"""``env play`` at a real (pseudo) terminal: lines can be edited, Ctrl-C is heard, and the terminal stays as it was."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import subprocess
import sys
import termios

import pytest

from marlaas.engine.home.paths import Home

COMMAND = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "env", "play", "guess"]
BACKSPACE, CTRL_C = b"\x7f", b"\x03"


class Terminal:
    """The terminal's end of a program: what it writes, and keys."""

    def __init__(self, number: int) -> None:
        self._number = number
        self._unread = b""

    def until(self, wanted: bytes, pressing: bytes = b"") -> bytes:
        """What the program writes, up to and with ``wanted``.

        ``pressing`` is pressed every second meanwhile, as a person does: a program that is just about to wait for a key
        does not hear Ctrl-C.
        """
        while wanted not in self._unread:
            if not pressing or select.select([self._number], [], [], 1.0)[0]:
                self._unread += os.read(self._number, 65536)
            else:
                self.press(pressing)
        shown, _, self._unread = self._unread.partition(wanted)
        return shown + wanted

    def press(self, keys: bytes) -> None:
        os.write(self._number, keys)


@pytest.mark.processes
def test_a_person_plays_at_a_terminal(home: Home) -> None:
    number, other = pty.openpty()
    terminal = Terminal(number)
    before = termios.tcgetattr(other)
    environment = os.environ | {"TERM": "xterm-256color"}
    owner = "import os, sys; os.setsid(); import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    command = [sys.executable, "-c", f"{owner} os.execv(sys.argv[1], sys.argv[1:])", *COMMAND]
    with (
        subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment) as process,
        contextlib.ExitStack() as ends,
    ):
        ends.callback(process.kill)  # a test that fails does not wait for it
        shown = terminal.until(b"you> ")
        assert b"user       Guess my number from" in shown
        terminal.press(b"x" + BACKSPACE + b"0\n")
        terminal.until(b"higher")
        terminal.until(b"you> ")
        terminal.press(b"x\n")
        assert b"not a number" in terminal.until(b"next, again or quit")
        terminal.press(b"again\n")
        terminal.until(b"you> ")
        terminal.press(CTRL_C)
        assert b"Interrupted" in terminal.until(b"goes on.", pressing=CTRL_C)
        assert process.wait() == 130
    assert termios.tcgetattr(other) == before
    os.close(number)
    os.close(other)
