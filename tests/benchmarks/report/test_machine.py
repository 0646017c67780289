"""Looking at the machine before measuring: one busy moment is waited for, a machine that stays busy is described so."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.report import machine


def looks(monkeypatch: pytest.MonkeyPatch, noises: Iterator[float]) -> list[float]:
    """Let the next looks find these noises; returns the seconds that are waited between them."""
    waited: list[float] = []
    monkeypatch.setattr(machine, "matrix_rate", lambda: (100.0, next(noises)))
    monkeypatch.setattr(machine, "sleep", waited.append)
    return waited


def test_a_quiet_machine_is_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = looks(monkeypatch, iter([0.1]))
    assert machine.describe(quiet=0.2).noise == 0.1
    assert waited == []


def test_a_busy_moment_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = looks(monkeypatch, iter([0.5, 0.24, 0.2]))
    assert machine.describe(quiet=0.2).noise == 0.2
    assert waited == [machine.BETWEEN] * 2


def test_a_machine_that_stays_busy_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    waited = looks(monkeypatch, iter([0.5] * 4))
    assert machine.describe(quiet=0.2, looks=3).noise == 0.5
    assert len(waited) == 3
