"""What is being loaded is told at once, with the seconds that it has taken, and goes again without a trace."""

from __future__ import annotations

import io
import sys
import threading
from itertools import count
from types import SimpleNamespace

import pytest

from marlaas.app import output
from marlaas.app.cli import terminal as module
from marlaas.app.cli.terminal import Waiting


class Terminal(io.StringIO):
    """Somebody watches."""

    def isatty(self) -> bool:
        return True

    def shown(self) -> str:
        """What stands in its last line."""
        line = ""
        for piece in self.getvalue().rpartition("\n")[2].split("\r"):
            line = piece + line[len(piece) :]
        return line.rstrip()


def watched(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    """A terminal from now on; not a fixture, as pytest puts its own standard error in place before each test."""
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    return terminal


def test_it_is_told_at_once_and_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    clock, counted = count(), threading.Event()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(module, "_INTERVAL", 0.001)
    drawn: list[str] = []
    write = terminal.write

    def heard(text: str) -> int:
        drawn.append(text)
        if "… 12 s" in text:
            counted.set()
        return write(text)

    monkeypatch.setattr(terminal, "write", heard)
    with Waiting("Loading guess\x1b[2J"):
        assert drawn[0] == "Loading guess …"
        assert counted.wait(30)
    assert terminal.shown() == ""


def test_a_line_of_its_own_stands_above_it(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    with Waiting("Starting the engine") as told:
        told.say("It compiles what it needs.")
        assert terminal.getvalue().splitlines()[-1].endswith("It compiles what it needs.")
        told.end()
        assert terminal.shown() == ""
        told.say("Done.")
    assert terminal.getvalue().endswith("Done.\n")


def test_in_a_pipe_it_is_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    pipe = io.StringIO()
    monkeypatch.setattr(sys, "stderr", pipe)
    with Waiting("Loading guess") as told:
        told.say("One line.")
    assert pipe.getvalue() == "One line.\n"
    with Waiting("Starting a sampler", piped=True):
        assert pipe.getvalue() == "One line.\nStarting a sampler …\n"


def test_who_hears_it_gets_lines_that_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = watched(monkeypatch)
    clock, counted = count(step=10), threading.Event()
    monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: next(clock)))
    monkeypatch.setattr(module, "_HEARD", 0.001)
    write = terminal.write

    def heard(text: str) -> int:
        if "30 seconds" in text:
            counted.set()
        return write(text)

    monkeypatch.setattr(terminal, "write", heard)
    output.mean_plain(True)
    try:
        with Waiting("Loading sums") as shown:
            shown.say("A large base takes minutes …")
            assert counted.wait(30)
    finally:
        output.mean_plain(False)
    lines = terminal.getvalue().splitlines()
    assert "\r" not in terminal.getvalue() and "A large base takes minutes ..." in lines
    assert "Loading sums: 30 seconds so far." in lines
