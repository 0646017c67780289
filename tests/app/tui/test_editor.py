"""A task file goes through the person's editor; Ctrl-C in another program is that program's alone."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from marlaas.app.tui.context.editor import at_line, edited, editor, hand_over, run
from marlaas.engine.errors import ConfigError

Use = Callable[[str], None]


@pytest.fixture
def use(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Use:
    """Makes a shell script the editor."""
    monkeypatch.delenv("VISUAL", raising=False)

    def use(script: str) -> None:
        path = tmp_path / "my editor"
        path.write_text(f"#!/bin/sh\n{script}\n")
        path.chmod(0o700)
        monkeypatch.setenv("EDITOR", f"'{path}' --wait")

    return use


def test_what_was_saved_comes_back(use: Use) -> None:
    use('[ "$1" = --wait ] && echo "steps = 3" >> "$2"')
    assert edited("name = 'ä'\n") == "name = 'ä'\nsteps = 3\n"


@pytest.mark.parametrize(
    ("script", "sentence"),
    [("exit 3", "exit code 3; nothing was taken over"), ("printf '\\377' > $2", "no UTF-8"), ("rm $2", "no UTF-8")],
)
def test_what_cannot_be_taken_over_is_a_sentence(use: Use, script: str, sentence: str) -> None:
    use(script)
    with pytest.raises(ConfigError, match=sentence):
        edited("")


def test_whoever_names_no_editor_gets_nano_or_vi(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("VISUAL", "EDITOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    for name in ("vi", "nano"):
        (tmp_path / name).write_text("#!/bin/sh\n")
        (tmp_path / name).chmod(0o700)
        assert editor() == [name]
    monkeypatch.setenv("EDITOR", "ed -s")
    assert editor() == ["ed", "-s"]
    monkeypatch.setenv("VISUAL", "code --wait")
    assert editor() == ["code", "--wait"]


@pytest.mark.parametrize(
    ("command", "line", "expected"),
    [
        (["vi"], 12, ["vi", "+12", "/a b.py"]),
        (["/usr/bin/nano", "-l"], 12, ["/usr/bin/nano", "-l", "+12", "/a b.py"]),
        (["hx"], 12, ["hx", "/a b.py:12"]),
        (["code", "--wait"], 12, ["code", "--wait", "--goto", "/a b.py:12"]),
        (["ed"], 12, ["ed", "/a b.py"]),
        (["vi"], 0, ["vi", "/a b.py"]),
    ],
)
def test_an_editor_opens_at_the_line(command: list[str], line: int, expected: list[str]) -> None:
    assert at_line(command, Path("/a b.py"), line) == expected


def test_without_an_editor(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VISUAL", " ")
    monkeypatch.delenv("EDITOR", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(ConfigError, match="No editor is set"):
        editor()
    monkeypatch.setenv("VISUAL", "/nowhere/editor")
    with pytest.raises(ConfigError, match="The editor /nowhere/editor cannot be started: No such file"):
        edited("")
    monkeypatch.setenv("VISUAL", "'unclosed")
    with pytest.raises(ConfigError, match="VISUAL"):
        editor()


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
