"""What tasks used reaches the store: at each beat, at an orderly stop, and after a disk was full."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from marlaas.engine.daemon.heartbeat import Heartbeat
from marlaas.engine.environments.outcomes import OutcomeCounts
from marlaas.engine.environments.protocol import EpisodeOutcome
from marlaas.engine.errors import StoreError
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.machine.routing.router import SamplerEndpoints
from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.models.find import load_base
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.samplers.protocol import SamplerStats
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.queries.machine import environment_use
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.trajectories import Failure

from ..rollout.endpoints import endpoint
from ..rollout.fake import FakeSampler


class FakeSupervisor:
    """Samplers that say for how many seconds they have been busy."""

    def __init__(self, **busy: float) -> None:
        self.busy = busy

    async def sampler_stats(self, patience: float) -> dict[str, SamplerStats]:
        return {name: SamplerStats(0, 0, seconds, 0, 0) for name, seconds in self.busy.items()}


SUPERVISOR = cast(WorkerSupervisor, FakeSupervisor())


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    store = Store(tmp_path / "marlaas.db", "tiny")
    submit(tmp_path / "marlaas.db", [submission(TaskSpec("lab", "sums", "arithmetic"))])
    yield store
    store.close()


async def test_a_stop_writes_what_was_used_since_the_last_beat(store: Store) -> None:
    ledger = Ledger()
    heartbeat = Heartbeat(store, ledger, OutcomeCounts(), lambda: None)
    ledger.training(1, 100, 0.5)
    await heartbeat.stop(SUPERVISOR)
    await heartbeat.stop(SUPERVISOR)
    assert store.tenants.tokens_today() == {"lab": 100}


async def test_what_a_full_disk_refused_is_written_later(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(usages: object) -> None:
        raise StoreError("The disk is full.")

    ledger = Ledger()
    heartbeat = Heartbeat(store, ledger, OutcomeCounts(), lambda: None)
    ledger.training(1, 100, 0.5)
    with monkeypatch.context() as full:
        full.setattr(store.tenants, "add_use", refuse)
        await heartbeat.stop(SUPERVISOR)
    assert store.tenants.tokens_today() == {}
    ledger.training(1, 1, 0.5)
    await heartbeat.stop(SUPERVISOR)
    assert store.tenants.tokens_today() == {"lab": 101}


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


async def test_outcomes_are_kept_while_the_disk_is_full(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(counted: object) -> None:
        raise StoreError("The disk is full.")

    outcomes = OutcomeCounts()
    heartbeat = Heartbeat(store, Ledger(), outcomes, lambda: None)
    outcomes.add("shop/buy", "v1", EpisodeOutcome("error", failure=Failure("it broke", "shop.py", 3)))
    with monkeypatch.context() as full:
        full.setattr(store.environments, "add_outcomes", refuse)
        await heartbeat.stop(SUPERVISOR)
    outcomes.add("shop/buy", "v1", EpisodeOutcome("ok", seconds=0.5))
    await heartbeat.stop(SUPERVISOR)
    with Reader(tmp_path / "marlaas.db") as reader:
        use = environment_use(reader, now=time.time())["shop/buy"]
    assert use.statuses == {"error": 1, "ok": 1} and use.failure is not None and use.failure.line == 3


async def test_seconds_of_each_sampler_go_to_those_who_asked_it(store: Store) -> None:
    ledger, supervisor = Ledger(), FakeSupervisor(**{"rollout": 3.0, "rollout-2": 1.0})
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
