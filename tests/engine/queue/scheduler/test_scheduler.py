"""Commands and slots: what the queue does while something else is in its way."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest

from marlaas.engine.errors import StoreError
from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.queue.scheduler import scheduler as module
from marlaas.engine.queue.scheduler.scheduler import Ending, Scheduler
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.store.submissions import command, submit

from ...by_hand import change
from ...train.test_learning import SPEC
from .world import World


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "POLL", 0.001)


@asynccontextmanager
async def serving(world: World, slots: int) -> AsyncIterator[Scheduler]:
    scheduler = Scheduler(world.store, cast(WorkerSupervisor, world), slots)
    run = asyncio.ensure_future(scheduler.run())
    yield scheduler
    scheduler.stop()
    await run


async def reaches(world: World, task: int, state: str) -> None:
    async with asyncio.timeout(50):
        while world.store.tasks.state(task) != state:
            await asyncio.sleep(0)


async def test_a_blocked_task_takes_no_slot_from_others(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, environment="broken"))
    (other,) = submit(world.home.database, [submission(SPEC)])
    async with serving(world, slots=1):
        await reaches(world, other, "done")
        (blocked,) = world.query(f"SELECT state, reason FROM tasks WHERE id = {world.task}")
        assert blocked["state"] == "queued" and "There is no environment" in blocked["reason"]
        assert not world.query(
            f"SELECT v.id FROM versions v JOIN policies p WHERE p.task = {world.task} AND v.policy = p.id"
        )  # nothing was loaded for it


async def test_a_command_that_the_disk_refused_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World(tmp_path, replace(SPEC, steps=1000))
    finish, refusals = world.store.tasks.finish_command, [1, 2]

    def refuse(number: int, outcome: str = "") -> None:
        if refusals.pop() == 2:
            raise StoreError("The disk is full.")
        finish(number, outcome)

    monkeypatch.setattr(world.store.tasks, "finish_command", refuse)
    async with serving(world, slots=1):
        await reaches(world, world.task, "running")
        command(world.home.database, "cancel", world.task)
        await reaches(world, world.task, "cancelled")
        async with asyncio.timeout(50):
            while world.store.tasks.new_commands():
                await asyncio.sleep(0)


async def test_commands_do_not_wait_between_looks_at_a_long_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "LONG", 0)
    monkeypatch.setattr(module, "LOOKED_AT", 0.001)
    world = World(tmp_path, replace(SPEC, steps=1000))
    (other,) = submit(world.home.database, [submission(replace(SPEC, steps=1000))])
    async with serving(world, slots=2) as scheduler:
        for task in (world.task, other):
            await reaches(world, task, "running")
        command(world.home.database, "cancel", world.task)
        await reaches(world, world.task, "cancelled")
        scheduler.drain()
        async with asyncio.timeout(50):
            while not scheduler.stopping:
                await asyncio.sleep(0)
    assert world.store.tasks.state(other) == "running"


async def test_a_task_that_ended_in_the_same_moment_stays_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = World(tmp_path, SPEC)

    async def ends(task: int, *_: object) -> Ending:
        command(world.home.database, "pause", task)
        return Ending("done")

    monkeypatch.setattr("marlaas.engine.queue.scheduler.scheduler.run_task", ends)
    async with serving(world, slots=1):
        async with asyncio.timeout(50):
            while not world.query("SELECT 1 FROM commands WHERE done IS NOT NULL"):
                await asyncio.sleep(0)
    assert world.store.tasks.state(world.task) == "done"
    (row,) = world.query("SELECT outcome FROM commands")
    assert "A task that is done cannot be paused" in row["outcome"]


async def test_a_paused_task_goes_on_where_it_stood(tmp_path: Path) -> None:
    world = World(tmp_path, replace(SPEC, steps=30))
    async with serving(world, slots=1):
        for _ in range(3):
            await reaches(world, world.task, "running")
            command(world.home.database, "pause", world.task)
            await reaches(world, world.task, "paused")
            command(world.home.database, "resume", world.task)
        await reaches(world, world.task, "done")
    assert [row["number"] for row in world.query("SELECT number FROM steps")] == list(range(1, 31))


async def test_a_task_of_another_program_fails_alone(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    (other,) = submit(world.home.database, [submission(SPEC)])
    change(world.home.database, "UPDATE tasks SET config = json_set(config, '$.colour', 'green') WHERE id = 1")
    async with serving(world, slots=1):
        await reaches(world, other, "done")
    (row,) = world.query("SELECT state, reason FROM tasks WHERE id = 1")
    assert row["state"] == "failed" and "unknown key 'colour'" in row["reason"]
