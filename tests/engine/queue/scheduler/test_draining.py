"""An engine that drains ends between two steps; one that yields stops at once. Both go on as if nothing had been."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.devices.usable import ResourceSettings
from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.machine.yielding.loop import YieldLoop
from marlaas.engine.queue.scheduler.scheduler import Ending, Scheduler
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import QueueSpec
from marlaas.engine.store.rows import IDLE, Yielding
from marlaas.engine.store.submissions import command, submit

from ....examples import examples
from ...train.test_learning import SPEC, check_history
from .serving import Heard, Time, answered, reaches, serving, waits
from .world import World


@settings(max_examples=examples(4))
@given(
    seed=st.integers(0, 10**6),
    most=st.integers(0, 6),
    staleness=st.integers(0, 2),
    drains=st.lists(st.integers(1, 300), min_size=1, max_size=4),
)
def test_nothing_that_was_begun_is_lost(seed: int, most: int, staleness: int, drains: list[int]) -> None:
    async def play(root: Path) -> None:
        world = World(root, replace(SPEC, train=replace(SPEC.train, max_staleness=staleness)), seed, most)
        for turns in drains:
            run = asyncio.ensure_future(world.go())
            for _ in range(turns):
                await asyncio.sleep(0)
            world.draining.set()
            ending = await run
            assert ending in (Ending("running"), Ending("done"))
            if ending.state == "done":
                break
            (stood,) = world.query("SELECT step FROM policies")
            assert stood["step"] < SPEC.steps
            begun = {spec.index for spec in world.environments.begun}
            stored = {row["instance"] for row in world.query("SELECT instance FROM groups WHERE split = 'train'")}
            assert begun <= stored, "a group was cut off"
            world.restart()
            world.environments.begun.clear()
        else:
            assert await world.go() == Ending("done")
        check_history(world)
        world.store.close()

    with TemporaryDirectory() as folder:
        asyncio.run(play(Path(folder)))


async def drained(scheduler: Scheduler) -> None:
    """Wait until the engine has ended by itself."""
    async with asyncio.timeout(50):
        while not scheduler.stopping:
            await asyncio.sleep(0)


async def test_the_engine_ends_by_itself_and_the_next_one_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, steps=12), others=[replace(SPEC, steps=12)])
    async with serving(world, 2) as scheduler:
        for task in (world.task, *world.others):
            await reaches(world, task, "running")
        assert scheduler.note == ""
        command(world.home.database, "drain")
        await world.draining.wait()
        assert scheduler.note == "2 tasks finish the step under way; then the engine stops."
        (late,) = submit(world.home.database, [submission(SPEC)])
        await drained(scheduler)
    assert world.store.tasks.new_commands() == []
    assert [world.store.tasks.state(task) for task in (world.task, *world.others)] == ["running"] * 2
    assert world.store.tasks.state(late) == "submitted"
    world.restart()
    async with serving(world, 3):
        for task in (world.task, *world.others, late):
            await reaches(world, task, "done")


@pytest.mark.parametrize("ends", ["stop", "yield"])
async def test_what_is_urgent_does_not_wait_for_a_drain(tmp_path: Path, ends: str) -> None:
    world, clock = World(tmp_path, replace(SPEC, steps=1000)), Time()
    async with yielding(world, clock) as scheduler:
        await reaches(world, world.task, "running")
        world.environments.gate = asyncio.get_running_loop().create_future()  # the step in progress never ends
        command(world.home.database, "drain")
        await world.draining.wait()
        command(world.home.database, ends, **({"until": None} if ends == "yield" else {}))
        await drained(scheduler)
    assert world.store.tasks.state(world.task) == "running"


async def test_workers_move_between_steps_and_all_go_on(tmp_path: Path) -> None:
    """Nothing that was begun is lost by a move, and the engine serves on."""
    world = World(tmp_path, replace(SPEC, steps=12))
    moved: list[set[int]] = []

    def move() -> None:
        begun = {spec.index for spec in world.environments.begun}
        stored = {row["instance"] for row in world.query("SELECT instance FROM groups WHERE split = 'train'")}
        moved.append(begun - stored)
        assert not world.draining.is_set() and not world.settling
        world.kill_workers()

    async with serving(world, 1) as scheduler:
        await reaches(world, world.task, "running")
        scheduler.settle(move)
        assert scheduler.note == "1 task finishes the step under way; then the workers move."
        await reaches(world, world.task, "done")
        assert moved == [set()], "a group was cut off, or the workers did not move once"
        assert scheduler.note == "" and not scheduler.stopping
    check_history(world)


LONG = replace(SPEC, steps=12)


@asynccontextmanager
async def yielding(
    world: World, clock: Time, heard: Heard | None = None, **resources: object
) -> AsyncIterator[Scheduler]:
    """An engine with its yield loop."""
    async with serving(world, 4, clock, heard) as scheduler:
        chosen = ResourceSettings(**{"idle_minutes": 0.0} | resources)  # type: ignore[arg-type]
        supervisor = cast(WorkerSupervisor, world)
        loop = YieldLoop(
            world.store, supervisor, chosen, lambda *_: None, lambda: scheduler.busy, scheduler.wake, clock
        )
        run = asyncio.ensure_future(loop.run())
        yield scheduler
        run.cancel()
        await asyncio.gather(run, return_exceptions=True)


async def test_tasks_say_why_they_wait_and_go_on(tmp_path: Path) -> None:
    clock, heard = Time(), Heard()
    world = World(tmp_path, LONG, others=[LONG])
    async with yielding(world, clock, heard):
        for task in (world.task, *world.others):
            await reaches(world, task, "running")
        assert await answered(world, "yield", until=clock.now + 7200) == ""
        for task in (world.task, *world.others):
            reason = await waits(world, "the engine has yielded the machine until", task)
            assert reason.endswith("`marlaas engine resume` takes it back")
        (late,) = submit(world.home.database, [submission(SPEC)])
        await waits(world, "yielded the machine", late)
        clock.now += 3600  # who is held up is not stalled
        assert await answered(world, "yield", until=None) == ""
        await waits(world, "yielded the machine;", late)
        assert world.lost.is_set() and await answered(world, "resume_engine") == ""
        for task in (world.task, *world.others, late):
            await reaches(world, task, "done")
    assert not [event for event, *_ in heard if event == "stalled"]


async def test_the_end_of_its_time_and_the_next_engine(tmp_path: Path) -> None:
    clock = Time()
    world = World(tmp_path, LONG)
    async with yielding(world, clock):
        await reaches(world, 1, "running")
        await answered(world, "yield", until=clock.now + 60)
        await waits(world, "yielded")
    world.restart()
    async with yielding(world, clock):
        await waits(world, "yielded")
        for _ in range(50):
            await asyncio.sleep(0)
        assert world.yielding is not None and world.store.tasks.state(world.task) == "queued"
        clock.now += 60
        await reaches(world, 1, "done")
    check_history(world)


async def test_idle_workers_end_and_the_next_task_starts_them(tmp_path: Path) -> None:
    clock = Time()
    world = World(tmp_path, SPEC)
    async with yielding(world, clock, idle_minutes=1e-9):
        await reaches(world, 1, "done")
        while world.yielding != Yielding(IDLE):
            await asyncio.sleep(0)
        assert world.lost.is_set()
        (late,) = submit(world.home.database, [submission(SPEC)])
        await reaches(world, late, "done")
    assert [row["kind"] for row in world.query("SELECT kind FROM events WHERE level = 'error'")] == []


async def test_workers_that_were_told_to_end_are_no_deaths(tmp_path: Path) -> None:
    """Five deaths at one step pause a task; so many yields do not."""
    clock = Time()
    world = World(tmp_path, replace(SPEC, steps=3, queue=QueueSpec(retries=0)))
    never: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    async with yielding(world, clock):
        world.environments.gate = never
        for _ in range(6):
            await reaches(world, 1, "running")
            await answered(world, "yield", until=None)
            await answered(world, "resume_engine")
        world.environments.gate = None
        await reaches(world, 1, "done")
