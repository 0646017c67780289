"""The supervisor with real workers: they move to other devices, and what cannot be shared is not tried for ever."""

from __future__ import annotations

import asyncio
import contextlib
import resource
import sys
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from marlaas.engine.devices.machine import Place, Placement, Sharing
from marlaas.engine.devices.usable import Ours
from marlaas.engine.errors import BaseModelError, OutOfMemory
from marlaas.engine.fairness.line import Ledger
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.machine.plan import PlacementPlan, on_processor
from marlaas.engine.machine.services import ServicesFactory
from marlaas.engine.machine.supervisor import WorkerProcesses, WorkerSupervisor
from marlaas.engine.models.find import load_base
from marlaas.engine.store.store import Store
from tests.engine.rollout.contract.asking import request
from tests.engine.rollout.random_base import write_adapter

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

BASE = load_base("tiny")
ONE = Settings(rollout=RolloutSettings(sampler="torch", sequences=8, context=64))
BOTH = Settings(rollout=RolloutSettings(samplers=("torch", "llama.cpp"), sequences=8, context=64))
CORES = (0,)


class Watched(WorkerSupervisor):
    """A supervisor whose words are kept, and which is planned anew with one sampler."""

    def __init__(self, home: Home, placement_plan: PlacementPlan, told: list[str]) -> None:
        self.again = on_processor(BASE, ONE, 8 << 30, CORES)
        environments: Any = SimpleNamespace(processes=lambda: [])
        store = Store(home.database, "tiny")
        common = (home, BOTH, BASE, placement_plan, store, environments, Ledger(), str)
        super().__init__(*common, lambda kind, message, level: told.append(f"{kind}: {message}"), self.planned)

    def planned(self, failed: tuple[Sharing, ...], ours: Ours) -> PlacementPlan:
        self.failed, self.seen = failed, ours
        return self.again


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
async def supervisor(tmp_path: Path, told: list[str]) -> AsyncIterator[Watched]:
    supervisor = Watched(Home(tmp_path).create(), on_processor(BASE, ONE, 8 << 30, CORES), told)
    yield supervisor
    await supervisor.stop()
    supervisor.store.close()


@pytest.mark.torch
async def test_workers_move_and_their_users_are_told(supervisor: Watched, told: list[str]) -> None:
    await supervisor.start()
    running = asyncio.ensure_future(supervisor.run())
    before, lost = await supervisor.services(), supervisor.lost
    await asyncio.sleep(0)
    supervisor.move(supervisor.placement_plan)
    assert not lost.is_set(), "they are there already"
    supervisor.move(on_processor(BASE, BOTH, 8 << 30, CORES))
    await lost.wait()
    after = await supervisor.services()
    assert (list(before.endpoints), list(after.endpoints)) == (["rollout"], ["rollout", "rollout-2"])
    assert [endpoint.kind for endpoint in after.endpoints.values()] == ["torch", "llama.cpp"]
    assert after.tolerances["rollout"] != after.tolerances["rollout-2"] or after.tolerances["rollout"].largest < 0.01
    assert [endpoint.context for endpoint in after.endpoints.values()] == [64, 64]
    stats = await supervisor.sampler_stats(5.0)
    assert set(stats) == set(after.endpoints) and set(supervisor.loads()) == {*after.endpoints, "training"}
    assert told == [f"placement: {supervisor.placement_plan.words}"] and "with llama.cpp" in told[0]
    assert not await supervisor.place_anew(), "the plan is another, and on no other cards"
    assert {pid for name, pid in supervisor.processes() if name in supervisor.loads()} <= set(supervisor.seen.processes)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_where_sharing_fails_the_next_best_is_started(
    supervisor: Watched, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Placement] = []

    async def start(processes: WorkerProcesses, *_: object) -> None:
        started.append(supervisor.placement_plan.placement)
        if started[-1].trainer.sharing:
            raise BaseModelError("There is no card.")

    async def opened(factory: ServicesFactory, *_: object) -> tuple[None, None]:
        return None, None

    monkeypatch.setattr(WorkerProcesses, "start", start)
    monkeypatch.setattr(ServicesFactory, "open", opened)
    apart = supervisor.placement_plan.placement
    shared = replace(apart, trainer=replace(apart.trainer, sharing="memory"))
    supervisor.place(replace(supervisor.placement_plan, placement=shared))
    await supervisor.start()
    assert started == [shared, apart] and supervisor.failed == ("memory",)
    assert told[0] == "placement: Sampler and trainer cannot share a card by memory: There is no card."
    assert told[1] == f"placement: {supervisor.placement_plan.words}"


async def test_workers_move_when_the_plan_takes_other_cards(supervisor: Watched) -> None:
    there = supervisor.placement_plan.placement
    before = replace(there, trainer=replace(there.trainer, place=Place(gpus=("GPU-0",))))
    supervisor.placement_plan = replace(supervisor.placement_plan, placement=before)
    assert await supervisor.place_anew() and supervisor.placement_plan.placement.cards == frozenset()
    assert not await supervisor.place_anew()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
async def test_a_step_without_memory_halves_the_next_sampler(
    supervisor: Watched, told: list[str], tmp_path: Path
) -> None:
    """The kernel refuses it what many long prompts take beside what it has."""
    adapter = write_adapter(tmp_path / "adapter", BASE, 0)
    many = replace(ONE, rollout=replace(ONE.rollout, sequences=100, context=512))
    supervisor.again = on_processor(BASE, many, 8 << 30, CORES)
    supervisor.place(supervisor.again)
    await supervisor.start()
    running = asyncio.ensure_future(supervisor.run())
    services, lost = await supervisor.services(), supervisor.lost
    sampler = services.endpoints["rollout"].sampler
    await sampler.load("v0", str(adapter))
    process = psutil.Process(dict(supervisor.processes())["rollout"])
    limit = process.memory_info().vms + (4 << 20)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    asked = [request(f"c{n}", [n + 2] * 400, max_tokens=4) for n in range(60)]
    ends = await asyncio.gather(*map(sampler.generate, asked), return_exceptions=True)
    assert {type(end) for end in ends} == {OutOfMemory} and "Worker rollout ran out of memory: " in str(ends[0])
    await supervisor.noticed(0)
    assert supervisor.mended and not lost.is_set()
    (endpoint,) = (await supervisor.services()).endpoints.values()
    assert endpoint.slots.count == 50
    words = "The sampler rollout ran out of memory; it goes on with 50 conversations instead of 100."
    assert told == [f"worker: {words} All other workers go on."]
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
