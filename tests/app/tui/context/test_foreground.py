"""Another program in the foreground: Ctrl-C is that program's alone."""

from __future__ import annotations

import os
import signal
import sys

import pytest

from marlaas.app.tui.context.editor import hand_over, run

BOTH = "import os, signal; os.kill(os.getppid(), signal.SIGINT); os.kill(os.getpid(), signal.SIGINT)"
"""What a terminal does on Ctrl-C: it interrupts the program and whoever started it."""


def test_an_interruption_ends_the_program_alone() -> None:
    before = signal.getsignal(signal.SIGINT)
    assert run([sys.executable, "-c", BOTH]) == -signal.SIGINT
    assert signal.getsignal(signal.SIGINT) is before
    assert run([sys.executable, "-c", "raise SystemExit(3)"]) == 3


def test_a_program_that_heeds_it_goes_on() -> None:
    heeding = f"import signal; signal.signal(signal.SIGINT, lambda *_: None); {BOTH}; raise SystemExit(7)"
    assert run([sys.executable, "-c", heeding]) == 7


@pytest.mark.parametrize(("program", "asked"), [("raise SystemExit(2)", True), ("raise SystemExit(130)", False)])
def test_the_last_lines_can_be_read(
    program: str, asked: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    prompts: list[str] = []
    monkeypatch.setattr("builtins.input", lambda prompt: prompts.append(prompt) or "")  # type: ignore[func-returns-value]
    hand_over([sys.executable, "-c", program], "Loading guess …")
    assert capsys.readouterr().out == "Loading guess …\n" and bool(prompts) is asked


def test_ctrl_c_instead_of_enter_goes_back_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("builtins.input", lambda prompt: os.kill(os.getpid(), signal.SIGINT))
    hand_over([sys.executable, "-c", ""], "Loading …")


def test_what_cannot_be_started_is_an_error() -> None:
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(OSError):
        run(["/nowhere/program"])
    assert signal.getsignal(signal.SIGINT) is before
