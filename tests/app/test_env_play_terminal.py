"""``env play`` at a real (pseudo) terminal: lines can be edited, Ctrl-C is heard, and the terminal stays as it was."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
import termios

import pytest

from marlaas.engine.paths import Home

COMMAND = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "env", "play", "guess"]
BACKSPACE, CTRL_C = b"\x7f", b"\x03"


def read_until(terminal: int, wanted: bytes) -> bytes:
    """What the program has written, up to ``wanted``."""
    seen = b""
    while wanted not in seen:
        seen += os.read(terminal, 65536)
    return seen


@pytest.mark.processes
def test_a_person_plays_at_a_terminal(home: Home) -> None:
    terminal, other = pty.openpty()
    before = termios.tcgetattr(other)
    environment = os.environ | {"TERM": "xterm-256color"}
    owner = "import os, sys; os.setsid(); import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    command = [sys.executable, "-c", f"{owner} os.execv(sys.argv[1], sys.argv[1:])", *COMMAND]
    with subprocess.Popen(command, stdin=other, stdout=other, stderr=other, env=environment) as process:
        shown = read_until(terminal, b"you> ")
        assert b"user       Guess my number from" in shown
        os.write(terminal, b"x" + BACKSPACE + b"0\n")
        read_until(terminal, b"higher")
        read_until(terminal, b"you> ")
        os.write(terminal, b"x\n")
        assert b"not a number" in read_until(terminal, b"next, again or quit")
        os.write(terminal, b"again\n")
        read_until(terminal, b"you> ")
        os.write(terminal, CTRL_C)
        assert b"Interrupted" in read_until(terminal, b"goes on.")
        assert process.wait() == 130
    assert termios.tcgetattr(other) == before
    os.close(terminal)
    os.close(other)
