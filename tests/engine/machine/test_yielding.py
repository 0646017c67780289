"""Yields, active hours and idleness end the workers and let them come back; what was asked outlives the engine."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any, cast

import pytest

from marlaas.engine.devices.usable import ResourceSettings
from marlaas.engine.errors import StoreError
from marlaas.engine.home.settings import ActiveHours
from marlaas.engine.machine.supervisor import Preemptible, WorkerSupervisor
from marlaas.engine.machine.yielding import loop as module
from marlaas.engine.machine.yielding.decision import clock, reason, state, yield_at
from marlaas.engine.machine.yielding.loop import YieldLoop
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import HOURS, IDLE, YIELDED, Yielding, YieldRequest
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
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[Engine]:
    engines: list[Engine] = []
    monkeypatch.setattr(module, "monotonic", lambda: engines[0].passed if engines else 0.0)
    engines.append(Engine(tmp_path / "marlaas.db", getattr(request, "param", ResourceSettings())))
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
    asked = [engine.ask("yield", until=None), engine.ask("resume_engine")]
    await engine.yield_loop.look()
    assert engine.supervisor.yieldings == [] and [engine.outcome(number) for number in asked] == ["", ""]
    assert engine.outcome(engine.ask("pause", task=None)) is None
    for until in (NOON + HOUR, None, NOON + 2 * HOUR):
        number = engine.ask("yield", until=until)
        await engine.yield_loop.look()
        assert engine.supervisor.yielding == Yielding(YIELDED, until) and engine.outcome(number) == ""
    number, changes = engine.ask("resume_engine"), engine.changes
    await engine.yield_loop.look()
    assert engine.supervisor.yielding == Yielding(IDLE) and engine.outcome(number) == "" and engine.changes > changes


async def test_the_next_engine_yields_on(engine: Engine, tmp_path: Path) -> None:
    engine.ask("yield", until=NOON + HOUR)
    await engine.yield_loop.look()
    for now, yieldings in ((NOON, [Yielding(YIELDED, NOON + HOUR)]), (NOON + HOUR, [])):
        other = Engine(tmp_path / "marlaas.db", ResourceSettings(), now=now)
        await other.yield_loop.look()
        assert other.supervisor.yieldings == yieldings and ("yielded" in "".join(other.said)) == bool(yieldings)
        other.store.close()


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


@pytest.mark.parametrize("engine", [ResourceSettings(active_hours="22:00-07:00")], indirect=True)
async def test_outside_of_its_hours_it_yields(engine: Engine) -> None:
    until_ten = Yielding(HOURS, NOON + 10 * HOUR)
    await engine.yield_loop.look()
    assert engine.supervisor.yielding == until_ten
    assert engine.said == ["The engine is outside of active hours until 22:00 and has no workers."]
    refused = "has not yielded the machine: it is outside of its active hours and goes on at 22:00"
    for kind, arguments, yielding, outcome in (
        ("resume_engine", {}, until_ten, refused),
        ("yield", {"until": NOON + HOUR}, Yielding(YIELDED, NOON + HOUR), ""),
        ("resume_engine", {}, until_ten, ""),
    ):
        number = engine.ask(kind, **arguments)
        await engine.yield_loop.look()
        assert engine.supervisor.yielding == yielding
        assert outcome in str(engine.outcome(number)) and bool(outcome) == bool(engine.outcome(number))
    engine.now = NOON + 10 * HOUR
    await engine.yield_loop.look()
    assert engine.supervisor.yielding == Yielding(IDLE) and engine.said[-1].startswith("The active hours have begun")


@pytest.mark.parametrize(
    ("engine", "gives_back"),
    [(ResourceSettings(), True), (ResourceSettings(idle_minutes=0), False)],
    indirect=["engine"],
)
async def test_what_nobody_uses_is_given_back(engine: Engine, gives_back: bool) -> None:
    """Who starts is not idle, however long it takes; who wants to keep the memory keeps it."""
    for busy, ready, passed, yields in (
        (True, True, 3600, 0),
        (False, False, 599, 0),
        (False, True, 599, 0),
        (False, True, 1, 1),
        (True, True, 0, 1),
        (False, True, 600, 2),
    ):
        engine.busy, engine.supervisor.ready, engine.passed = busy, ready, engine.passed + passed
        if busy:
            engine.supervisor.yielding = None
        await engine.yield_loop.look()
        assert engine.supervisor.yieldings == [Yielding(IDLE)] * yields * gives_back
    assert [message.startswith("Nothing has run for 10 minutes") for message in engine.said[:1]] == [True] * gives_back


async def test_it_is_broken_off_and_begins_again_when_it_is_wanted() -> None:
    preemptible, events = Preemptible(), list[str]()

    async def work() -> None:
        events.append("begun")
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # what it does at its end takes its time
            events.append("ended")

    for yielding in (Yielding(IDLE), Yielding(YIELDED)):
        first = asyncio.ensure_future(preemptible.during(work()))
        while events[-1:] != ["begun"]:
            await asyncio.sleep(0)
        preemptible.begin(yielding)
        await preemptible.begun()
        assert events[-2:] == ["begun", "ended"]
        await first
        await preemptible.during(work())
        assert events[-1] == "ended", "it began although nobody wants it"
        preemptible.end()
        assert preemptible.yielding == (None if yielding.kind == IDLE else yielding), "people end what they want"


NOW = datetime(2026, 11, 2, 12, 0).timestamp()
LATER = datetime(2026, 11, 2, 14, 5).timestamp()
NIGHT, DAY, ALWAYS = ActiveHours.parse("22:00-07:00"), ActiveHours.parse("09:00-18:00"), ActiveHours()
TEN = datetime(2026, 11, 2, 22, 0).timestamp()


@pytest.mark.parametrize(
    ("yielded", "hours", "idle", "yielding"),
    [
        (None, ALWAYS, False, None),
        (None, DAY, False, None),
        (None, DAY, True, Yielding(IDLE)),
        (None, NIGHT, True, Yielding(HOURS, TEN)),
        (YieldRequest(None), NIGHT, True, Yielding(YIELDED)),
        (YieldRequest(LATER), DAY, False, Yielding(YIELDED, LATER)),
        (YieldRequest(NOW), DAY, False, None),
        (YieldRequest(NOW - 1), NIGHT, False, Yielding(HOURS, TEN)),
        (YieldRequest(NOW - 1), ALWAYS, True, Yielding(IDLE)),
    ],
)
def test_the_strongest_reason_counts(
    yielded: YieldRequest | None, hours: ActiveHours, idle: bool, yielding: Yielding | None
) -> None:
    assert yield_at(NOW, yielded, hours, idle) == yielding
    assert yielding is None or yielding.holds is (yielding.kind != IDLE)


@pytest.mark.parametrize(
    ("yielding", "shown", "waits"),
    [
        (Yielding(YIELDED), "yielded", "the engine has yielded the machine; `marlaas engine resume` takes it back"),
        (
            Yielding(YIELDED, LATER),
            "yielded until 14:05",
            "the engine has yielded the machine until 14:05; `marlaas engine resume` takes it back",
        ),
        (
            Yielding(HOURS, TEN),
            "outside of active hours until 22:00",
            "it is outside of the active hours; goes on at 22:00",
        ),
        (Yielding(HOURS), "outside of active hours", "it is outside of the active hours"),
        (Yielding(IDLE), "idle", ""),
    ],
)
def test_yielding_says_why_it_is_and_when_it_ends(yielding: Yielding, shown: str, waits: str) -> None:
    assert state(yielding, NOW) == shown
    assert not yielding.holds or reason(yielding, NOW) == waits


@pytest.mark.parametrize(
    ("month", "day", "shown"),
    [
        (11, 2, "14:05"),
        (11, 3, "Tue 14:05"),
        (11, 8, "Sun 14:05"),
        (11, 9, "2026-11-09 14:05"),
        (11, 1, "2026-11-01 14:05"),
    ],
)
def test_a_moment_names_its_day_where_that_is_another(month: int, day: int, shown: str) -> None:
    assert clock(datetime(2026, month, day, 14, 5).timestamp(), NOW) == shown
