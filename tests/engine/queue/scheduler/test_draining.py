"""An engine that drains ends between two steps: what was begun is finished, and the next engine goes on with it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import cast

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.queue.scheduler import scheduler as module
from marlaas.engine.queue.scheduler.scheduler import Ending, Scheduler
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.store.submissions import command, submit

from ....examples import examples
from ...train.test_learning import SPEC, check_history
from .test_scheduler import reaches, serving
from .world import World


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.001)


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


async def test_the_engine_ends_by_itself_and_the_next_one_goes_on(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, steps=30), others=[replace(SPEC, steps=30)])
    scheduler = Scheduler(world.store, cast(WorkerSupervisor, world), slots=2)
    run = asyncio.ensure_future(scheduler.run())
    for task in (world.task, *world.others):
        await reaches(world, task, "running")
    assert scheduler.note == ""
    command(world.home.database, "drain")
    while not world.draining.is_set():
        await asyncio.sleep(0)
    assert scheduler.note == "2 tasks finish the step under way; then the engine stops."
    (late,) = submit(world.home.database, [submission(SPEC)])
    await run
    assert world.store.tasks.new_commands() == []
    assert [world.store.tasks.state(task) for task in (world.task, *world.others)] == ["running"] * 2
    assert world.store.tasks.state(late) == "submitted"
    world.restart()
    async with serving(world, slots=3):
        for task in (world.task, *world.others, late):
            await reaches(world, task, "done")


async def test_an_engine_with_nothing_to_do_ends_at_once(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, environment="broken"))
    scheduler = Scheduler(world.store, cast(WorkerSupervisor, world), slots=1)
    command(world.home.database, "pause", world.task)
    command(world.home.database, "drain")
    await scheduler.run()
    assert scheduler.stopping and world.store.tasks.state(world.task) == "paused"


async def test_stop_does_not_wait_for_a_drain(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, steps=1000))
    never: asyncio.Future[float] = asyncio.get_running_loop().create_future()
    scheduler = Scheduler(world.store, cast(WorkerSupervisor, world), slots=1)
    run = asyncio.ensure_future(scheduler.run())
    await reaches(world, world.task, "running")
    world.environments.gate = never
    command(world.home.database, "drain")
    while not world.draining.is_set():
        await asyncio.sleep(0)
    command(world.home.database, "stop")
    await run
    assert world.store.tasks.state(world.task) == "running"


async def test_workers_move_between_steps_and_all_go_on(tmp_path: Path) -> None:
    """Nothing that was begun is lost by a move, and the engine serves on."""
    world = World(tmp_path, replace(SPEC, steps=30))
    scheduler = Scheduler(world.store, cast(WorkerSupervisor, world), slots=1)
    moved: list[set[int]] = []

    def move() -> None:
        begun = {spec.index for spec in world.environments.begun}
        stored = {row["instance"] for row in world.query("SELECT instance FROM groups WHERE split = 'train'")}
        moved.append(begun - stored)
        assert not world.draining.is_set() and not world.settling
        world.kill_workers()

    run = asyncio.ensure_future(scheduler.run())
    await reaches(world, world.task, "running")
    scheduler.settle(move)
    assert scheduler.note == "1 task finishes the step under way; then the workers move."
    await reaches(world, world.task, "done")
    assert moved == [set()], "a group was cut off, or the workers did not move once"
    assert scheduler.note == "" and not scheduler.stopping
    check_history(world)
    scheduler.stop()
    await run


async def test_a_drain_goes_before_a_move(tmp_path: Path) -> None:
    for first in (True, False):
        world = World(tmp_path / str(first), replace(SPEC, environment="broken"))
        scheduler = Scheduler(world.store, cast(WorkerSupervisor, world), slots=1)
        moves: list[str] = []
        if first:
            scheduler.settle(lambda: moves.append("moved"))  # noqa: B023
        scheduler.drain()
        if not first:
            scheduler.settle(lambda: moves.append("moved"))  # noqa: B023
        await scheduler.run()
        assert scheduler.stopping and not moves
