"""Yields, active hours and idleness end the workers and let them come back; what was asked outlives the engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.engine.devices.usable import ResourceSettings
from marlaas.engine.errors import StoreError
from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.machine.yielding import loop as module
from marlaas.engine.machine.yielding.loop import YieldLoop
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import HOURS, IDLE, YIELDED, Yielding
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import command

NOON = datetime(2026, 11, 2, 12, 0).timestamp()
HOUR = 3600.0


@dataclass
class FakeSupervisor:
    """Remembers why it had to yield."""

    yielding: Yielding | None = None
    ready: bool = True
    yieldings: list[Yielding] = field(default_factory=list)

    async def yield_machine(self, yielding: Yielding) -> None:
        self.yielding = yielding
        self.yieldings.append(yielding)


@dataclass
class Engine:
    """One engine's yielding, on a clock that is moved by hand."""

    path: Path
    settings: ResourceSettings
    now: float = NOON
    passed: float = 0.0
    busy: bool = False
    changes: int = 0
    said: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.supervisor = FakeSupervisor()
        self.store = Store(self.path, "tiny")
        self.yield_loop = YieldLoop(
            self.store, cast(WorkerSupervisor, self.supervisor), self.settings,
            lambda kind, text, level: self.said.append(text), lambda: self.busy, self.changed, lambda: self.now,
        )  # fmt: skip

    def changed(self) -> None:
        self.changes += 1

    def ask(self, kind: str, **arguments: Any) -> int:
        return command(self.path, kind, **arguments)

    def outcome(self, number: int) -> str | None:
        with Reader(self.path) as reader:
            return reader.command_outcomes([number]).get(number)

    def shown(self) -> tuple[str, float | None]:
        with Reader(self.path) as reader:
            engine = reader.engine()
        assert engine is not None
        return engine.rest, engine.rest_until


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    yield from _engine(tmp_path, monkeypatch, ResourceSettings())


@pytest.fixture
def nightly(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Engine]:
    yield from _engine(tmp_path, monkeypatch, ResourceSettings(active_hours="22:00-07:00"))


def _engine(folder: Path, monkeypatch: pytest.MonkeyPatch, settings: ResourceSettings) -> Iterator[Engine]:
    engines: list[Engine] = []
    monkeypatch.setattr(module, "monotonic", lambda: engines[0].passed if engines else 0.0)
    engines.append(Engine(folder / "marlaas.db", settings))
    yield engines[0]
    engines[0].store.close()


async def test_a_yield_is_answered_when_done_and_has_an_end(engine: Engine) -> None:
    asked = engine.ask("yield", until=NOON + HOUR)
    await engine.yield_loop.look()
    assert engine.supervisor.yieldings == [Yielding(YIELDED, NOON + HOUR)] and engine.outcome(asked) == ""
    assert engine.shown() == ("yielded", NOON + HOUR) and "until 13:00" in engine.said[-1]
    engine.now += HOUR - 1
    await engine.yield_loop.look()
    assert engine.supervisor.yielding == Yielding(YIELDED, NOON + HOUR) and len(engine.said) == 1
    engine.now += 1
    await engine.yield_loop.look()
    assert engine.supervisor.yielding == Yielding(IDLE) and engine.shown() == ("idle", None)
    assert engine.said[-1] == "The engine has the machine again: the next task starts the workers."
    assert engine.store.telemetry.yield_request() is None
    engine.supervisor.yielding = None  # a task woke it
    await engine.yield_loop.look()
    assert engine.shown() == ("", None) and len(engine.supervisor.yieldings) == 2


async def test_another_yield_sets_another_end_and_a_resume_ends_it(engine: Engine) -> None:
    for until in (NOON + HOUR, None, NOON + 2 * HOUR):
        asked = engine.ask("yield", until=until)
        await engine.yield_loop.look()
        assert engine.supervisor.yielding == Yielding(YIELDED, until) and engine.outcome(asked) == ""
    asked = engine.ask("resume_engine")
    changes = engine.changes
    await engine.yield_loop.look()
    assert engine.supervisor.yielding == Yielding(IDLE) and engine.outcome(asked) == "" and engine.changes > changes


async def test_who_was_told_last_counts(engine: Engine) -> None:
    asked = [engine.ask("yield", until=None), engine.ask("resume_engine")]
    await engine.yield_loop.look()
    assert engine.supervisor.yieldings == [] and [engine.outcome(number) for number in asked] == ["", ""]
    assert engine.outcome(engine.ask("pause", task=None)) is None


async def test_the_next_engine_yields_on(engine: Engine, tmp_path: Path) -> None:
    engine.ask("yield", until=NOON + HOUR)
    await engine.yield_loop.look()
    other = Engine(tmp_path / "marlaas.db", ResourceSettings())
    await other.yield_loop.look()
    assert other.supervisor.yieldings == [Yielding(YIELDED, NOON + HOUR)] and "yielded" in other.said[0]
    other.store.close()
    late = Engine(tmp_path / "marlaas.db", ResourceSettings(), now=NOON + HOUR)
    await late.yield_loop.look()
    assert late.supervisor.yieldings == []
    late.store.close()


async def test_a_full_disk_keeps_no_card(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(until: float | None) -> None:
        raise StoreError("The disk is full.")

    asked = engine.ask("yield", until=None)
    with monkeypatch.context() as patch:
        patch.setattr(engine.store.telemetry, "begin_yield", full)
        for _ in range(2):
            with pytest.raises(StoreError):
                await engine.yield_loop.look()
    assert engine.supervisor.yieldings == [Yielding(YIELDED)] and engine.outcome(asked) is None
    await engine.yield_loop.look()
    assert engine.outcome(asked) == "" and engine.store.telemetry.yield_request() is not None


async def test_outside_of_its_hours_it_yields(nightly: Engine) -> None:
    await nightly.yield_loop.look()
    assert nightly.supervisor.yielding == Yielding(HOURS, NOON + 10 * HOUR)
    assert nightly.said == ["The engine is outside of active hours until 22:00 and has no workers."]
    asked = nightly.ask("resume_engine")
    await nightly.yield_loop.look()
    assert "has not yielded the machine: it is outside of its active hours and goes on at 22:00" in str(
        nightly.outcome(asked)
    )
    asked = nightly.ask("yield", until=NOON + HOUR)
    await nightly.yield_loop.look()
    assert nightly.supervisor.yielding == Yielding(YIELDED, NOON + HOUR)
    asked = nightly.ask("resume_engine")
    await nightly.yield_loop.look()
    assert nightly.outcome(asked) == "" and nightly.supervisor.yielding == Yielding(HOURS, NOON + 10 * HOUR)
    nightly.now = NOON + 10 * HOUR
    await nightly.yield_loop.look()
    assert nightly.supervisor.yielding == Yielding(IDLE) and nightly.said[-1].startswith("The active hours have begun")


async def test_what_nobody_uses_is_given_back(engine: Engine) -> None:
    engine.busy = True
    engine.passed = 3600.0
    await engine.yield_loop.look()
    engine.busy, engine.supervisor.ready = False, False
    engine.passed += 599
    await engine.yield_loop.look()  # who starts is not idle, however long it takes
    engine.supervisor.ready = True
    engine.passed += 599
    await engine.yield_loop.look()
    assert engine.supervisor.yieldings == []
    engine.passed += 1
    await engine.yield_loop.look()
    assert engine.supervisor.yieldings == [Yielding(IDLE)] and engine.said[-1].startswith(
        "Nothing has run for 10 minutes"
    )
    engine.supervisor.yielding = None
    engine.busy = True
    await engine.yield_loop.look()
    engine.busy = False
    engine.passed += 600
    await engine.yield_loop.look()
    assert len(engine.supervisor.yieldings) == 2


async def test_who_wants_to_keep_memory_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for engine in _engine(tmp_path, monkeypatch, ResourceSettings(idle_minutes=0)):
        engine.passed = 1e9
        await engine.yield_loop.look()
        assert engine.supervisor.yieldings == [] and engine.said == []
