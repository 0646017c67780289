"""The installed program in a real (pseudo) terminal: it paints, it answers keys, it leaves the terminal as it was."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios

import pytest

from marlaas.engine.home.paths import Home

from .filling import Filling

ENTRY = "import sys; from marlaas.app.cli.main import main; sys.exit(main())"


def read_until(terminal: int, wanted: bytes) -> None:
    seen = b""
    while wanted not in seen:
        seen += os.read(terminal, 65536)


def test_paints_and_quits(home: Home, filling: Filling) -> None:
    filling.task(name="two-digit sums", made=3)
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    with subprocess.Popen(
        [sys.executable, "-P", "-c", ENTRY],
        stdin=other,
        stdout=other,
        stderr=other,
        start_new_session=True,
        env=os.environ | {"TERM": "xterm-256color"},
    ) as process:
        os.close(other)
        read_until(terminal, b"two-digit sums")
        os.write(terminal, b"\r")
        read_until(terminal, b"trajectory 1 of 3")
        os.write(terminal, b"q")
        read_until(terminal, b"\x1b[?1049l")  # leaves the alternate screen
        with contextlib.suppress(OSError):  # Linux says so when the other end is closed
            while os.read(terminal, 65536):
                pass
        assert process.wait() == 0
    os.close(terminal)


def test_errors_sent_to_a_file_do_not_take_the_screen_with_them(home: Home, filling: Filling) -> None:
    filling.task(name="two-digit sums", made=3)
    terminal, other = pty.openpty()
    command = [sys.executable, "-P", "-c", ENTRY]
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=subprocess.PIPE, start_new_session=True)
    os.close(other)
    read_until(terminal, b"two-digi")  # the plain list: Textual would draw into the file
    _, errors = process.communicate(timeout=30)
    assert process.returncode == 0 and b"\x1b" not in errors
    os.close(terminal)


def test_a_terminal_without_unicode_has_ascii(home: Home, filling: Filling) -> None:
    filling.task(name="two-digit sums", made=3)
    terminal, other = pty.openpty()
    plain = {"LC_ALL": "C", "PYTHONCOERCECLOCALE": "0", "PYTHONUTF8": "0"}
    process = subprocess.Popen(
        [sys.executable, "-P", "-c", ENTRY], stdin=other, stdout=other, stderr=other, env=os.environ | plain
    )
    os.close(other)
    read_until(terminal, b"o waiting")  # and not “? waiting”
    os.write(terminal, b"q")
    with contextlib.suppress(OSError):
        while os.read(terminal, 65536):
            pass
    assert process.wait() == 0
    os.close(terminal)


@pytest.mark.parametrize("started", ["with a terminal of its own", "without one", "deaf to hangups"])
def test_ends_once_its_terminal_is_gone(home: Home, filling: Filling, started: str) -> None:
    filling.task(name="two-digit sums", made=3)
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    begin = {
        "with a terminal of its own": "import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);",
        "without one": "",
        "deaf to hangups": "signal.signal(signal.SIGHUP, signal.SIG_IGN);",
    }[started]
    heard = "import signal; signal.signal(signal.SIGHUP, signal.SIG_DFL);"  # whatever started the tests
    command = [sys.executable, "-P", "-c", f"{heard} {begin} {ENTRY}"]
    process = subprocess.Popen(command, stdin=other, stdout=other, stderr=other, start_new_session=True)
    try:
        os.close(other)
        read_until(terminal, b"two-digit sums")
        os.close(terminal)
        code = process.wait(40)  # a second where it is told; the rest is for a machine that is busy
        assert code == (128 + signal.SIGHUP if started == "deaf to hangups" else -signal.SIGHUP)
    finally:
        process.kill()
        process.wait()


@pytest.mark.processes
def test_ctrl_c_in_a_game_leaves_only_the_game(home: Home, filling: Filling) -> None:
    filling.environment("guess")
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    owner = "import os, sys; os.setsid(); import fcntl, termios; fcntl.ioctl(0, termios.TIOCSCTTY, 0);"
    command = [sys.executable, "-c", f"{owner} os.execv(sys.argv[1], sys.argv[1:])", sys.executable, "-P", "-c", ENTRY]
    with (
        subprocess.Popen(
            command, stdin=other, stdout=other, stderr=other, env=os.environ | {"TERM": "xterm-256color"}
        ) as process,
        contextlib.ExitStack() as ends,
    ):
        ends.callback(process.kill)  # a test that fails does not wait for it
        os.close(other)
        read_until(terminal, b"palette")
        os.write(terminal, b"4")
        read_until(terminal, b"Sums of whole numbers")
        os.write(terminal, b"P")
        read_until(terminal, b"Loading guess")
        read_until(terminal, b"you> ")
        seen = b""
        while b"\x1b[?1049h" not in seen:  # until the application has the screen again
            os.write(terminal, b"\x03")  # a program that is just about to wait for a key does not hear it
            while select.select([terminal], [], [], 1.0)[0] and b"\x1b[?1049h" not in seen:
                seen += os.read(terminal, 65536)
        assert b"Enter goes back" not in seen
        read_until(terminal, b"Sums of whole numbers")
        os.write(terminal, b"q")
        read_until(terminal, b"\x1b[?1049l")
        with contextlib.suppress(OSError):
            while os.read(terminal, 65536):
                pass
        assert process.wait() == 0
    os.close(terminal)
