"""What the engine writes at each beat: tokens, stages, workers and cards."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from marlaas.engine.daemon import heartbeat
from marlaas.engine.daemon.heartbeat import (
    LEAVE,
    LOOKED_AT,
    CardMonitor,
    Heartbeat,
    Processes,
    Seen,
    StageMeter,
    worker_rows,
)
from marlaas.engine.devices.machine import Holder
from marlaas.engine.devices.survey import look
from marlaas.engine.devices.usable import Ours, ResourceSettings, claimed, usable_resources
from marlaas.engine.environments.outcomes import OutcomeCounts
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.errors import ConfigError, StoreError
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.machine.routing.router import SamplerEndpoints
from marlaas.engine.machine.services import Load
from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.models.find import load_base
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.samplers.protocol import SamplerStats
from marlaas.engine.simulate.simulation import run_virtually
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.queries.machine import DeviceRow, StageSample, devices, environment_use
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.trajectories import Failure

from ...imaginary.cards import GB, Card, Held, ImaginaryMachine, imagine, uuid_of
from ..rollout.endpoints import endpoint
from ..rollout.fake import FakeSampler


class Samplers:
    """Samplers that say for how many seconds they have been busy."""

    def __init__(self, **busy: float) -> None:
        self.busy = busy

    async def sampler_stats(self, patience: float) -> dict[str, SamplerStats]:
        return {name: SamplerStats(0, 0, seconds, 0, 0) for name, seconds in self.busy.items()}


SUPERVISOR = cast(WorkerSupervisor, Samplers())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "marlaas.db", "tiny")
    submit(tmp_path / "marlaas.db", [submission(TaskSpec("lab", "sums", "arithmetic"))])
    yield store
    store.close()


async def test_what_a_full_disk_refused_is_written_later(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Once: a second stop adds nothing."""

    def refuse(rows: object) -> None:
        raise StoreError("The disk is full.")

    ledger, outcomes = Ledger(), OutcomeCounts()
    heartbeat = Heartbeat(store, ledger, outcomes, lambda: None)
    ledger.training(1, 100, 0.5)
    outcomes.add("shop/buy", "v1", EpisodeOutcome("error", failure=Failure("it broke", "shop.py", 3)))
    with monkeypatch.context() as full:
        full.setattr(store.tenants, "add_use", refuse)
        full.setattr(store.environments, "add_outcomes", refuse)
        await heartbeat.stop(SUPERVISOR)
    assert store.tenants.tokens_today() == {}
    ledger.training(1, 1, 0.5)
    outcomes.add("shop/buy", "v1", EpisodeOutcome("ok", seconds=0.5))
    for _ in range(2):
        await heartbeat.stop(SUPERVISOR)
    assert store.tenants.tokens_today() == {"lab": 101}
    with Reader(tmp_path / "marlaas.db") as reader:
        use = environment_use(reader, now=time.time())["shop/buy"]
    assert use.statuses == {"error": 1, "ok": 1} and use.failure is not None and use.failure.line == 3


async def test_the_pulse_ends_though_the_sampler_just_answered(store: Store) -> None:
    answer: asyncio.Future[SamplerStats] = asyncio.get_running_loop().create_future()
    sampler = FakeSampler()
    sampler.stats = lambda: answer  # type: ignore[method-assign, assignment, return-value]
    endpoints = SamplerEndpoints([endpoint(sampler, 1, 8)], {}, load_base("tiny"))
    heartbeat = Heartbeat(store, Ledger(), OutcomeCounts(), lambda: None)
    asking = asyncio.ensure_future(
        heartbeat.stop(cast(WorkerSupervisor, SimpleNamespace(sampler_stats=endpoints.stats)))
    )
    for _ in range(3):
        await asyncio.sleep(0)
    answer.set_result(SamplerStats(0, 0, 1.0, 0, 0))
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking


async def test_seconds_of_each_sampler_go_to_those_who_asked_it(store: Store) -> None:
    ledger, supervisor = Ledger(), Samplers(**{"rollout": 3.0, "rollout-2": 1.0})
    heartbeat = Heartbeat(store, ledger, OutcomeCounts(), lambda: None)
    ledger.rollout(1, 10, 5, "rollout-2")
    await heartbeat.stop(cast(WorkerSupervisor, supervisor))
    assert [(usage.seconds, usage.tokens) for usage in ledger.take()] == [] and store.tenants.tokens_today() == {
        "lab": 15
    }
    assert dict(ledger.busy) == {"rollout": 3.0, "rollout-2": 1.0}
    supervisor.busy = {"rollout": 4.0, "rollout-2": 0.5}  # the second is a fresh worker
    await heartbeat.stop(cast(WorkerSupervisor, supervisor))
    assert dict(ledger.busy) == {"rollout": 4.0, "rollout-2": 1.0}


LOADS = {"rollout": Load(3, 8), "training": Load(1, 2)}


def seen(**spent: float) -> list[Seen]:
    return [Seen(name, 1, 0, 0.0, seconds) for name, seconds in spent.items()]


def test_a_sample_is_what_happened_since_the_last() -> None:
    ledger = Ledger()
    meter = StageMeter(ledger)
    idle = meter.samples(seen(engine=0.1), {}, {}, 0.0, 1.0)  # of workers that are being replaced
    assert [(sample.stage, sample.busy) for sample in idle] == [
        ("rollout", 0.0),
        ("environment", 0.0),
        ("training", 0.0),
        ("engine", 0.1),
    ]
    for round in (1, 2):
        ledger.rollout(1, 10, 5)
        ledger.rollout_seconds(0.5 * round)
        ledger.passes["rollout"] += 3
        ledger.training(1, 7, 0.25)
        ledger.environment(1, 3.0)
        ledger.environment(2, 1.0)
        spent = {"engine": 0.1, "env sums": 0.2, "env maze": 0.3, "env idle": 0.0, "rollout": 9.0}
        samples = meter.samples(seen(**spent), LOADS, {"rollout": "core 0"}, 100.0, 2.0)
        assert samples == [
            StageSample("rollout", "core 0", 100.0, 2.0, 0.5 * round, 3, 8, 1, tokens=5, read=10, passes=3),
            StageSample("environment", "cpu", 100.0, 2.0, 0.5, 0.0, 2.0, 2),
            StageSample("training", "cpu", 100.0, 2.0, 0.25, 1, 2, 1, tokens=7),
            StageSample("engine", "cpu", 100.0, 2.0, 0.1, 0.0, 0.0, 0),
            StageSample("env sums", "cpu", 100.0, 2.0, 0.2, 0.0, 0.0, 0),
            StageSample("env maze", "cpu", 100.0, 2.0, 0.3, 0.0, 0.0, 0),
        ]


NOBODY = 2**22 + 1
"""Above the largest process id."""


def test_processor_time_is_what_was_spent_since_the_last_look() -> None:
    processes, me = Processes(), ("engine", os.getpid())
    (first,) = processes.look([me, ("gone", NOBODY)])
    assert first.spent > 0 and first.rss > 2**20 and 0 < first.started <= time.time()
    spent = 0.0
    while spent == 0.0:
        sum(range(100_000))
        (again,) = processes.look([me])
        spent = again.spent
    assert spent < first.spent and again.started == first.started


def test_a_row_for_each_process_and_each_worker_that_starts() -> None:
    seen = [Seen("rollout", 7, 100, 1.0, 0.9), Seen("env sums", 8, 10, 1.0, 0.5), Seen("env sums", 9, 10, 1.0, 5.0)]
    rows = worker_rows(seen, {"rollout": 0.25}, {"rollout-2": "core 1"}, 1.0, {"rollout", "rollout-2"})
    assert [(row.name, row.busy, row.state, row.pid, row.device) for row in rows] == [
        ("rollout", 0.25, "starting", 7, ""),
        ("env sums", 0.5, "running", 8, ""),
        ("env sums (9)", 1.0, "running", 9, ""),
        ("rollout-2", 0.0, "starting", None, "core 1"),
    ], "one that has a process takes no calls yet, either"


SECONDS = 24


class Environments:
    """None."""

    def infos(self) -> tuple[()]:
        return ()


class BusySamplers:
    """So many samplers, which are busy all the time."""

    def __init__(self, count: int) -> None:
        self.devices = {
            "rollout" if not number else f"rollout-{number + 1}": f"gpu {number}" for number in range(count)
        }
        self.environments = Environments()
        self.draining = asyncio.Event()
        self.settling = False
        self.starting: frozenset[str] = frozenset()
        self.asked: list[float] = []
        """When each sampler was asked."""

    async def sampler_stats(self, patience: float) -> dict[str, SamplerStats]:
        now = asyncio.get_running_loop().time()
        self.asked += [now] * len(self.devices)
        return {name: SamplerStats(0, 0, now, 0, 0) for name in self.devices}

    def processes(self) -> list[tuple[str, int]]:
        return [(name, number) for number, name in enumerate(self.devices)]

    def loads(self) -> dict[str, Load]:
        return {name: Load() for name in self.devices}

    def standings(self) -> dict[str, list[object]]:
        return {}


def beaten(store: Store, count: int) -> BusySamplers:
    """The samplers, after some heartbeats."""

    async def minute() -> BusySamplers:
        samplers = BusySamplers(count)
        heartbeat = Heartbeat(
            store,
            Ledger(),
            OutcomeCounts(),
            lambda: None,
            look=lambda processes: [Seen(name, pid, 0, 0.0, 0.0) for name, pid in processes],
        )
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(SECONDS):
                await heartbeat.run(cast(WorkerSupervisor, samplers))
        return samplers

    return run_virtually(minute)


def test_a_bounded_number_of_workers_is_looked_at_each_second(tmp_path: Path) -> None:
    count = 300
    store = Store(tmp_path / "marlaas.db", "tiny")
    try:
        asked = beaten(store, count).asked
        looks = len(set(asked))
        assert looks == (SECONDS - 1) // max(1, -(-count // LOOKED_AT))
        assert len(asked) <= LOOKED_AT * SECONDS
        with Reader(tmp_path / "marlaas.db") as reader:
            samples = reader.all(
                "SELECT wall, busy FROM stages WHERE device = 'gpu 0' AND stage = 'rollout' ORDER BY id"
            )
            workers = reader.all("SELECT busy FROM workers")
        assert len(samples) == looks
        assert all(sample["busy"] == pytest.approx(sample["wall"]) for sample in samples)  # busy all the time
        assert [worker["busy"] for worker in workers] == pytest.approx([1.0] * count)
    finally:
        store.close()


LOST = 15


@dataclass
class Replanned:
    """It is planned on whatever cards a look at the imaginary machine finds."""

    ours: Ours
    resources: ResourceSettings
    ready: bool = True
    planned: list[set[str]] = field(default_factory=list)

    async def place_anew(self) -> bool:
        usable = usable_resources(claimed(look(self.ours.processes), self.ours), self.resources, {}, "me")
        cards = {gpu.uuid for gpu in usable.machine.gpus}
        if not cards:
            raise ConfigError("There is no card.")
        self.planned.append(cards)
        self.ours = replace(self.ours, cards=tuple(cards))
        return True


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ImaginaryMachine:
    """Looked at in this process."""
    monkeypatch.setattr(heartbeat, "probe", look)
    return imagine(monkeypatch, tmp_path)


@dataclass
class Looks:
    """What a monitor says, and the rows in the store, while the imaginary machine changes from look to look."""

    machine: ImaginaryMachine
    monkeypatch: pytest.MonkeyPatch
    database: Path
    messages: list[tuple[str, str, str]] = field(default_factory=list)
    rows: list[list[DeviceRow]] = field(default_factory=list)

    async def watch(
        self,
        supervisor: Replanned,
        looks: list[tuple[Card, ...]],
        resources: ResourceSettings | None = None,
    ) -> list[str]:
        """The sentences on placement."""

        async def next_look(seconds: float) -> None:
            with Reader(self.database) as reader:
                self.rows.append(devices(reader))
            if not looks:
                raise asyncio.CancelledError
            self.machine.have(*looks.pop(0))

        self.monkeypatch.setattr(asyncio, "sleep", next_look)
        self.machine.have(*looks.pop(0))
        monitor = CardMonitor(
            self.store, resources or ResourceSettings(), cast(Any, supervisor), lambda *said: self.messages.append(said)
        )
        with contextlib.suppress(asyncio.CancelledError):
            await monitor.run()
        return [text for kind, text, _ in self.messages if kind == "placement"]

    def __post_init__(self) -> None:
        self.store = Store(self.database, "tiny")


@pytest.fixture
def looks(machine: ImaginaryMachine, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Looks]:
    looks = Looks(machine, monkeypatch, tmp_path / "marlaas.db")
    yield looks
    looks.store.close()


@pytest.mark.processes
async def test_cards_are_watched(looks: Looks) -> None:
    resources = ResourceSettings(gpus=(0, 7))
    supervisor = Replanned(Ours((os.getpid(),), (uuid_of(0),)), resources)
    states: list[tuple[Card, ...]] = [
        (Card(used=3000, utilisation=40, held=(Held(os.getpid(), 3000),)), Card()),
        (Card(used=9000), Card()),
        (Card(code=LOST), Card(used=9000)),
    ]
    await looks.watch(supervisor, states, resources)
    first, second, third = looks.rows
    assert [[row.label for row in rows] for rows in looks.rows] == [["gpu 0", "gpu 1"], ["gpu 0", "gpu 1"], ["gpu 1"]]
    assert second[0].reason == "" and len(second[0].holders) == 1 and third[0].reason
    assert (first[0].memory, first[0].free, first[0].utilisation) == (80 * GB * 10**6, 77 * GB * 10**6, 0.4)
    assert first[0].reason == "" and "`gpus` under [resources]" in first[1].reason
    (holder,) = first[0].holders
    assert holder == Holder(os.getpid(), holder.account, 3 * GB * 10**6, ours=True)
    assert [(level, text) for _, text, level in looks.messages] == [
        ("info", "`gpus` under [resources] names 7, which is no card here."),
        ("info", "gpu 1 is left alone: `gpus` under [resources] leaves it out."),
        ("warning", "gpu 0 cannot be used: GPU is lost; restarting the machine may bring it back."),
        ("warning", "somebody unseen took memory of gpu 1: 9.0 GB are theirs, 71.0 GB are free."),
    ]


LEFT = "The workers go elsewhere: gpu 0 may not be used any more."
TAKEN = Card(used=9000, held=(Held(1, 9000),))  # the first process belongs to the system's administrator


@pytest.mark.processes
async def test_work_leaves_a_taken_card_and_takes_a_free_one(looks: Looks, monkeypatch: pytest.MonkeyPatch) -> None:
    mine = Card(used=3000, held=(Held(os.getpid(), 3000),))
    monkeypatch.setattr(heartbeat, "TAKE", 2)
    monkeypatch.setattr(heartbeat, "own_account", lambda: "me")
    supervisor = Replanned(Ours((os.getpid(),), (uuid_of(0),)), ResourceSettings())
    said = await looks.watch(supervisor, [(mine, Card()), *[(TAKEN, mine)] * (LEAVE + 1), *[(Card(), mine)] * 2])
    assert supervisor.planned == [{uuid_of(1)}, {uuid_of(0), uuid_of(1)}]
    assert said == [LEFT, "The workers go elsewhere: further cards may be used."]


@pytest.mark.processes
async def test_where_nothing_else_can_be_planned_that_is_said_once(looks: Looks) -> None:
    supervisor = Replanned(Ours((os.getpid(),), (uuid_of(0),)), ResourceSettings(gpus=()))
    said = await looks.watch(supervisor, [(Card(),), *[(Card(code=LOST),)] * 2 * LEAVE])
    assert said == ["The workers cannot leave gpu 0: There is no card."] and supervisor.ours.cards == (uuid_of(0),)
