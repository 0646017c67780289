"""Runs command lines in this process, with an engine that is only pretended."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from typing import Any

import pytest

from marlaas.app import output
from marlaas.app.cli.main import main
from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home


@dataclass
class FakeEngine:
    """Stands in for ``control``: says whether it lives, and remembers what it was asked."""

    living: bool = True
    asked: list[str] = field(default_factory=list)

    def install(self, monkeypatch: pytest.MonkeyPatch) -> FakeEngine:
        """Put it in place of the real one."""
        monkeypatch.setattr(control, "alive", lambda home: self.living)
        monkeypatch.setattr(control, "ensure_running", self._start)
        monkeypatch.setattr(control, "stop", self._stop)
        return self

    def _start(self, home: Home, timeout: float = 60, notice: object = None) -> None:
        self.asked.append("start")
        self.living = True

    def _stop(self, home: Home, timeout: float = 30) -> bool:
        self.asked.append("stop")
        was, self.living = self.living, False
        return was


def asked(home: Home) -> list[tuple[str, int | None, dict[str, Any]]]:
    """All commands to the engine so far: kind, task, arguments."""
    with closing(sqlite3.connect(home.database)) as connection:
        rows = connection.execute("SELECT kind, task, arguments FROM commands ORDER BY id").fetchall()
    return [(kind, task, json.loads(arguments)) for kind, task, arguments in rows]


def steered(home: Home) -> list[tuple[str, int | None]]:
    """All commands so far, without their arguments."""
    return [(kind, task) for kind, task, _ in asked(home)]


@dataclass(frozen=True)
class Said:
    """How a command line ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        """Standard output as JSON."""
        return json.loads(self.out)


class Commander:
    """Runs command lines."""

    def __init__(self, capsys: pytest.CaptureFixture[str]) -> None:
        self._capsys = capsys

    def __call__(self, *words: str) -> Said:
        try:
            code = main(words)
        except SystemExit as end:
            code = int(end.code or 0)
        finally:
            output.mean_plain(False)
        captured = self._capsys.readouterr()
        return Said(code, captured.out, captured.err)
