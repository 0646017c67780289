"""Who starts an engine waits for as long as it says that it starts, and is told what for."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.lock import EngineLock, holder, starts
from marlaas.engine.errors import EngineUnreachable, HomeLocked
from marlaas.engine.home.paths import Home
from marlaas.engine.store.store import Store

STEP = 20.0
"""Seconds between two looks: a third of what a silent engine is given."""


class Engine:
    """An engine that starts, by a clock of its own: each look at it is one more of its ``phases``."""

    def __init__(self, home: Home, phases: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 0.0
        self._home, self._phases = home, phases
        self._lock = EngineLock(home.lock)
        self._lock.acquire()
        monkeypatch.setattr(time, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "sleep", self._sleep)

    def _sleep(self, _: float) -> None:
        self.now += STEP
        if not self._phases:
            return
        phase = self._phases.pop(0)
        if phase == "serves":
            self._lock.started()
            store = Store(self._home.database, "tiny", "f" * 16)
            store.telemetry.heartbeat(store.incarnation, "running")
            store.close()
        elif phase:
            self._lock.starting(phase)
        else:
            self._lock.started()

    def end(self) -> None:
        self._lock.release()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    found = Home(tmp_path / "home")
    control.create_database(found)
    return found


def test_an_engine_that_starts_is_waited_for(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    phases = [*["It reads the base."] * 10, *["It measures the processor."] * 10, "serves"]
    engine = Engine(home, phases, monkeypatch)
    said: list[str] = []
    control.ensure_running(home, timeout=60.0, notice=said.append)
    engine.end()
    assert engine.now > 20 * STEP, "far beyond what a silent engine is given"
    assert said == ["It reads the base.", "It measures the processor."]


def test_one_that_falls_silent_is_given_up(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = Engine(home, [*["It reads the base."] * 10, ""], monkeypatch)
    with pytest.raises(EngineUnreachable, match="does not answer after 60 s"):
        control.ensure_running(home, timeout=60.0)
    engine.end()
    assert 10 * STEP + 60 <= engine.now <= 12 * STEP + 60


def test_a_starting_engine_is_named_by_its_process(home: Home) -> None:
    lock = EngineLock(home.lock)
    lock.acquire()
    process = holder(home.lock)
    assert process and not starts(home.lock)
    lock.starting("It reads the base, which is long.")
    assert (holder(home.lock), starts(home.lock)) == (process, "It reads the base, which is long.")
    with pytest.raises(HomeLocked, match=rf"process {process}\) serves"):
        EngineLock(home.lock).acquire(lambda _: None)
    lock.starting("It measures.")
    assert starts(home.lock) == "It measures."
    lock.started()
    assert (holder(home.lock), starts(home.lock), home.lock.read_text()) == (process, "", f"{process}\n")
    lock.starting("It reads the base.")
    lock.release()
    assert (holder(home.lock), starts(home.lock)) == (None, "")
