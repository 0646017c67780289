"""The crew with real workers: they go over to other posts, and what cannot be shared is not tried for ever."""

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

from marlaas.engine.base.model import load_base
from marlaas.engine.devices.ours import Ours
from marlaas.engine.devices.plan import Place, Placement, Sharing
from marlaas.engine.errors import BaseModelError, OutOfMemory
from marlaas.engine.fairness.ledger import Ledger
from marlaas.engine.fleet.placement_plan import Staffing, staffing
from marlaas.engine.fleet.supervisor import Crew
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import RolloutSettings, Settings
from marlaas.engine.store.store import Store
from tests.engine.rollout.contract import request
from tests.engine.rollout.random_base import write_adapter

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]

BASE = load_base("tiny")
ONE = Settings(rollout=RolloutSettings(sampler="torch", sequences=8, context=64))
BOTH = Settings(rollout=RolloutSettings(samplers=("torch", "llama.cpp"), sequences=8, context=64))
CORES = (0,)


class Watched(Crew):
    """A crew whose words are kept, and which is planned anew with one sampler."""

    def __init__(self, home: Home, staff: Staffing, told: list[str]) -> None:
        self.again = staffing(BASE, ONE, 8 << 30, CORES)
        environments: Any = SimpleNamespace(processes=lambda: [])
        store = Store(home.database, "tiny")
        common = (home, BOTH, BASE, staff, store, environments, Ledger(), str)
        super().__init__(*common, lambda kind, message, level: told.append(f"{kind}: {message}"), self.planned)

    def planned(self, failed: tuple[Sharing, ...], ours: Ours) -> Staffing:
        self.failed, self.seen = failed, ours
        return self.again


@pytest.fixture
def told() -> list[str]:
    return []


@pytest.fixture
async def crew(tmp_path: Path, told: list[str]) -> AsyncIterator[Watched]:
    crew = Watched(Home(tmp_path).create(), staffing(BASE, ONE, 8 << 30, CORES), told)
    yield crew
    await crew.stop()
    crew.store.close()


async def test_workers_go_over_to_other_posts_and_whoever_works_with_the_old_ones_is_told(
    crew: Watched, told: list[str]
) -> None:
    await crew.start()
    running = asyncio.ensure_future(crew.run())
    before, lost = await crew.services(), crew.lost
    await asyncio.sleep(0)
    crew.move(crew.staffing)
    assert not lost.is_set(), "they are there already"
    crew.move(staffing(BASE, BOTH, 8 << 30, CORES))
    await lost.wait()
    after = await crew.services()
    assert (list(before.stations), list(after.stations)) == (["rollout"], ["rollout", "rollout-2"])
    assert [station.kind for station in after.stations.values()] == ["torch", "llama.cpp"]
    assert after.tolerances["rollout"] != after.tolerances["rollout-2"] or after.tolerances["rollout"].largest < 0.01
    assert [station.context for station in after.stations.values()] == [64, 64]
    stats = await crew.sampler_stats(5.0)
    assert set(stats) == set(after.stations) and set(crew.loads()) == {*after.stations, "training"}
    assert told == [f"placement: {crew.staffing.words}"] and "torch and llama.cpp sample" in told[0]
    assert not await crew.place_anew(), "the plan is another, and on no other cards"
    assert {pid for name, pid in crew.processes() if name in crew.loads()} <= set(crew.seen.processes)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running


async def test_where_sharing_fails_the_next_best_placement_is_started_and_said(
    crew: Watched, told: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    started: list[Placement] = []

    async def start() -> None:
        started.append(crew.staffing.placement)
        if started[-1].trainer.sharing:
            raise BaseModelError("There is no card.")

    monkeypatch.setattr(crew, "_start", start)
    apart = crew.staffing.placement
    shared = replace(apart, trainer=replace(apart.trainer, sharing="memory"))
    crew._man(replace(crew.staffing, placement=shared))
    await crew.start()
    assert started == [shared, apart] and crew.failed == ("memory",)
    assert told[0] == "placement: Sampler and trainer cannot share a card by memory: There is no card."
    assert told[1] == f"placement: {crew.staffing.words}"


async def test_workers_go_over_to_other_cards_where_a_plan_of_the_moment_takes_others(crew: Watched) -> None:
    there = crew.staffing.placement
    before = replace(there, trainer=replace(there.trainer, place=Place(gpus=("GPU-0",))))
    crew.staffing = replace(crew.staffing, placement=before)
    assert await crew.place_anew() and crew.staffing.placement.cards == frozenset()
    assert not await crew.place_anew()


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="limits of Linux")
async def test_a_sampler_whose_step_finds_no_memory_is_followed_by_one_that_holds_half_as_many(
    crew: Watched, told: list[str], tmp_path: Path
) -> None:
    """The kernel refuses it what many long prompts take beside what it has."""
    adapter = write_adapter(tmp_path / "adapter", BASE, 0)
    many = replace(ONE, rollout=replace(ONE.rollout, sequences=100, context=512))
    crew.again = staffing(BASE, many, 8 << 30, CORES)
    crew._man(crew.again)
    await crew.start()
    running = asyncio.ensure_future(crew.run())
    services, lost = await crew.services(), crew.lost
    sampler = services.stations["rollout"].sampler
    await sampler.load("v0", str(adapter))
    process = psutil.Process(dict(crew.processes())["rollout"])
    limit = process.memory_info().vms + (4 << 20)
    resource.prlimit(process.pid, resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))
    asked = [request(f"c{n}", [n + 2] * 400, max_tokens=4) for n in range(60)]
    ends = await asyncio.gather(*map(sampler.generate, asked), return_exceptions=True)
    assert {type(end) for end in ends} == {OutOfMemory} and "Worker rollout ran out of memory: " in str(ends[0])
    await lost.wait()
    assert crew.mended
    (station,) = (await crew.services()).stations.values()
    assert station.seats.count == 50
    assert told == ["worker: The sampler rollout ran out of memory; it goes on with 50 conversations instead of 100."]
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
