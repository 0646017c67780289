"""Who asked to hear of tasks hears of each end and each stall once, when the store says the same."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.queue.scheduler import scheduler as module
from marlaas.engine.queue.scheduler.scheduler import Scheduler
from marlaas.engine.spec.task import CUT_REPLIES, WatchSpec
from marlaas.engine.store.submissions import command
from marlaas.engine.train.watch import DETECTORS

from ...by_hand import change
from ...train.test_learning import SPEC
from ...train.test_watch import CHEATED, cheated
from .test_scheduler import reaches
from .test_waiting import Time, until
from .world import World


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.001)
    monkeypatch.setattr(module, "REVIEW", 0.002)
    monkeypatch.delitem(DETECTORS, CUT_REPLIES)  # the world's replies have three tokens, and all are cut


Heard = list[tuple[str, int, str]]
"""Event, task, and the state that the store had at that moment."""


@asynccontextmanager
async def telling(world: World, clock: Time, heard: Heard) -> AsyncIterator[Scheduler]:
    def tell(event: str, task: int) -> None:
        heard.append((event, task, world.store.tasks.state(task)))

    scheduler = Scheduler(world.store, cast(WorkerSupervisor, world), 4, clock, tell, patience=60)
    run = asyncio.ensure_future(scheduler.run())
    yield scheduler
    scheduler.stop()
    await run


async def test_ends_are_told_and_what_a_person_did_is_not(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC, others=(replace(SPEC, name="second"),))
    heard: Heard = []
    (second,) = world.others
    command(world.home.database, "cancel", second)
    async with telling(world, Time(), heard):
        await reaches(world, world.task, "done")
    assert heard == [("done", world.task, "done")]


async def test_a_task_that_paused_itself_has_stalled(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, train=replace(SPEC.train, patience=1)))
    world.environments.score = lambda spec: 0.5
    heard: Heard = []
    async with telling(world, Time(), heard):
        await reaches(world, world.task, "paused")
    assert heard == [("stalled", world.task, "paused")]


async def test_a_finding_is_told_once(tmp_path: Path) -> None:
    world = cheated(CHEATED, tmp_path)
    heard: Heard = []
    async with telling(world, Time(), heard):
        await reaches(world, world.task, "done")
    assert heard == [("finding", world.task, "running"), ("done", world.task, "done")]


async def test_a_finding_pauses_a_task_until_it_is_resumed(tmp_path: Path) -> None:
    world = cheated(replace(CHEATED, watch=WatchSpec(pause=("reward_hacking",))), tmp_path)
    heard: Heard = []
    async with telling(world, Time(), heard):
        await reaches(world, world.task, "paused")
        command(world.home.database, "resume", world.task)
        await reaches(world, world.task, "done")
    told = [("finding", "running"), ("stalled", "paused"), ("done", "done")]
    assert heard == [(event, world.task, state) for event, state in told]


async def test_a_task_that_cannot_be_read_has_failed(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    change(world.home.database, "UPDATE tasks SET config = json_set(config, '$.nonsense', 1)")
    heard: Heard = []
    async with telling(world, Time(), heard):
        await reaches(world, world.task, "failed")
    assert heard == [("failed", world.task, "failed")]


async def test_a_task_that_is_blocked_for_long_is_told_of_once(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, environment="broken"))
    clock, heard = Time(), Heard()
    async with telling(world, clock, heard):
        await until(world, lambda state, reason: "blocked" in reason or "broken" in reason)
        clock.now += 59
        await asyncio.sleep(0.05)  # several tries
        assert not heard
        clock.now += 2
        async with asyncio.timeout(50):
            while not heard:
                await asyncio.sleep(0.001)
        await asyncio.sleep(0.05)
    assert heard == [("stalled", world.task, "queued")]
