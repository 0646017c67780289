"""Yielding stops tasks at their last commit and says why; they go on from there as if nothing had been."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, cast

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.devices.usable import ResourceSettings
from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.machine.yielding import loop as module
from marlaas.engine.machine.yielding.loop import YieldLoop
from marlaas.engine.queue.scheduler import scheduler as queue
from marlaas.engine.queue.scheduler.scheduler import Scheduler
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.store.rows import IDLE, Yielding
from marlaas.engine.store.submissions import command, submit

from ....examples import examples
from ...train.test_learning import SPEC, check_history
from .test_waiting import Time, reached, retrying, saying, until
from .world import World

LONG = replace(SPEC, steps=40)
EXACT = replace(SPEC, steps=6, train=replace(SPEC.train, deterministic=True, max_staleness=0))


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(queue, "POLL", 0.001)
    monkeypatch.setattr(queue, "REVIEW", 0.002)
    monkeypatch.setattr(module, "POLL", 0.001)


@asynccontextmanager
async def serving(
    world: World, clock: Time, tell: list[tuple[str, int]] | None = None, **resources: object
) -> AsyncIterator[Scheduler]:
    """An engine with its yield loop."""

    def told(event: str, task: int) -> None:
        if tell is not None:
            tell.append((event, task))

    supervisor = cast(WorkerSupervisor, world)
    scheduler = Scheduler(world.store, supervisor, 4, clock, told, patience=60.0)
    chosen = ResourceSettings(**{"idle_minutes": 0.0} | resources)  # type: ignore[arg-type]
    yield_loop = YieldLoop(
        world.store, supervisor, chosen, lambda *_: None, lambda: scheduler.busy, scheduler.wake, clock
    )
    works = [asyncio.ensure_future(scheduler.run()), asyncio.ensure_future(yield_loop.run())]
    yield scheduler
    scheduler.stop()
    await works[0]
    works[1].cancel()
    await asyncio.gather(*works, return_exceptions=True)


async def answered(world: World, kind: str, **arguments: Any) -> str:
    """Ask, and wait for the outcome."""
    number = command(world.home.database, kind, **arguments)
    async with asyncio.timeout(50):
        while True:
            (row,) = world.query(f"SELECT done, outcome FROM commands WHERE id = {number}")
            if row["done"] is not None:
                return str(row["outcome"])
            await asyncio.sleep(0)


async def test_tasks_say_why_they_wait_and_go_on(tmp_path: Path) -> None:
    clock, told = Time(), list[tuple[str, int]]()
    world = World(tmp_path, LONG, others=[LONG])
    async with serving(world, clock, told):
        for task in (world.task, *world.others):
            await until(world, reached("running"), task)
        assert await answered(world, "yield", until=clock.now + 7200) == ""
        for task in (world.task, *world.others):
            reason = await until(world, saying("the engine has yielded the machine until"), task)
            assert reason.endswith("`marlaas engine resume` takes it back")
        (late,) = submit(world.home.database, [submission(SPEC)])
        await until(world, saying("yielded the machine"), late)
        clock.now += 3600  # who is held up is not stalled
        assert await answered(world, "yield", until=None) == ""
        await until(world, saying("yielded the machine;"), late)
        assert world.lost.is_set() and await answered(world, "resume_engine") == ""
        for task in (world.task, *world.others, late):
            await until(world, reached("done"), task)
    assert ("stalled", world.task) not in told


@settings(max_examples=examples(3))
@given(seed=st.integers(0, 10**6), most=st.integers(0, 6), staleness=st.integers(0, 2))
def test_nothing_is_lost_or_doubled_whenever_it_begins(seed: int, most: int, staleness: int) -> None:
    async def play(root: Path) -> None:
        clock, chance = Time(), random.Random(seed)
        spec = replace(SPEC, steps=12, train=replace(SPEC.train, max_staleness=staleness))
        world = World(root, spec, seed, most)
        async with serving(world, clock):
            for _ in range(3):
                for _ in range(chance.randint(1, 200)):
                    await asyncio.sleep(0)
                if world.store.tasks.state(world.task) == "done":
                    break
                await answered(world, "yield", until=None)
                await answered(world, "resume_engine")
            await until(world, reached("done"))
        check_history(world)
        world.store.close()

    with TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


async def test_the_end_of_its_time_and_the_next_engine(tmp_path: Path) -> None:
    clock = Time()
    world = World(tmp_path, LONG)
    async with serving(world, clock):
        await until(world, reached("running"))
        await answered(world, "yield", until=clock.now + 60)
        await until(world, saying("yielded"))
    world.restart()
    async with serving(world, clock):
        await until(world, saying("yielded"))
        for _ in range(50):
            await asyncio.sleep(0)
        assert world.yielding is not None and world.store.tasks.state(world.task) == "queued"
        clock.now += 60
        await until(world, reached("done"))
    check_history(world)


async def test_a_drain_and_a_stop_end_a_yielding_engine(tmp_path: Path) -> None:
    world = World(tmp_path, LONG)
    for ends in ("drain", "stop"):
        clock = Time()
        async with serving(world, clock) as scheduler:
            await until(world, lambda state, reason: True)
            await answered(world, "yield", until=None)
            command(world.home.database, ends)
            while not scheduler.stopping:
                await asyncio.sleep(0)
        world.restart()


async def test_a_yield_ends_a_drain_at_once(tmp_path: Path) -> None:
    clock = Time()
    never: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    world = World(tmp_path, LONG)
    async with serving(world, clock) as scheduler:
        await until(world, reached("running"))
        world.environments.gate = never  # the step under way would take for ever
        command(world.home.database, "drain")
        while not world.draining.is_set():
            await asyncio.sleep(0)
        assert await answered(world, "yield", until=None) == ""
        while not scheduler.stopping:
            await asyncio.sleep(0)
    assert world.store.tasks.state(world.task) == "running"


async def test_idle_workers_end_and_the_next_task_starts_them(tmp_path: Path) -> None:
    clock = Time()
    world = World(tmp_path, SPEC)
    async with serving(world, clock, idle_minutes=1e-9):
        await until(world, reached("done"))
        while world.yielding != Yielding(IDLE):
            await asyncio.sleep(0)
        assert world.lost.is_set()
        (late,) = submit(world.home.database, [submission(SPEC)])
        await until(world, reached("done"), late)
    assert [row["kind"] for row in world.query("SELECT kind FROM events WHERE level = 'error'")] == []


async def test_a_blocked_task_starts_no_workers(tmp_path: Path) -> None:
    clock = Time()
    world = World(tmp_path, replace(SPEC, environment="broken"))
    async with serving(world, clock, idle_minutes=1e-9):
        await until(world, saying("There is no environment"))
        while world.yielding != Yielding(IDLE):
            await asyncio.sleep(0)
        before = world.checks
        while world.checks < before + 3:
            await asyncio.sleep(0.001)
        assert world.yielding == Yielding(IDLE)


async def test_workers_that_were_told_to_end_are_no_deaths(tmp_path: Path) -> None:
    """Five deaths at one step pause a task; so many yields do not."""
    clock = Time()
    world = World(tmp_path, retrying(0, steps=3))
    never: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    async with serving(world, clock):
        world.environments.gate = never
        for _ in range(6):
            await until(world, reached("running"))
            await answered(world, "yield", until=None)
            await answered(world, "resume_engine")
        world.environments.gate = None
        await until(world, reached("done"))


async def test_what_must_repeat_itself_does(tmp_path: Path) -> None:
    def made(world: World) -> list[object]:
        return [row["checksum"] for row in world.query("SELECT checksum FROM versions ORDER BY number")]

    alone = World(tmp_path / "alone", EXACT)
    await alone.go()
    clock, broken = Time(), World(tmp_path / "broken", EXACT, seed=5)
    async with serving(broken, clock):
        for step in range(1, EXACT.steps):
            while broken.store.tasks.steps_made(broken.task) < step:
                await asyncio.sleep(0)
            await answered(broken, "yield", until=None)
            await answered(broken, "resume_engine")
        await until(broken, reached("done"))
    assert made(broken) == made(alone)
