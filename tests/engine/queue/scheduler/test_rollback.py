"""A task that does not run goes on from an earlier version: later steps are void, their names never come back."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.adapters.statefile import read_state
from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.queue.scheduler.commands import roll_back
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import EvalSpec, KeepSpec
from marlaas.engine.store.submissions import command

from ...by_hand import change
from ...train.test_learning import SPEC, check_history
from .test_scheduler import reaches, serving
from .world import World

KEPT = replace(SPEC, eval=EvalSpec(every=0, prompts=3), keep=KeepSpec(every=1))


async def done(tmp_path: Path, **changes: object) -> World:
    world = World(tmp_path, replace(KEPT, **changes))  # type: ignore[arg-type]
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    world.store.tasks.set_state(world.task, "done")
    return world


def numbers(world: World, state: str) -> list[int]:
    return [row["number"] for row in world.query(f"SELECT number FROM versions WHERE state = '{state}' ORDER BY id")]


@pytest.mark.parametrize("number", [0, 2, 4])
async def test_later_steps_are_made_again_under_other_names(tmp_path: Path, number: int) -> None:
    world = await done(tmp_path)
    await roll_back(world.store, world.task, number)
    assert world.store.tasks.state(world.task) == "queued"
    assert numbers(world, "void") == list(range(number + 1, SPEC.steps + 1))
    assert [row["step"] for row in world.query("SELECT step FROM policies")] == [number]
    (label,) = world.query("SELECT label FROM versions WHERE state = 'committed' ORDER BY number DESC LIMIT 1")
    assert label == {"label": "last"}
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    check_history(world)
    names = [row["name"] for row in world.query("SELECT name FROM versions")]
    assert len(set(names)) == len(names) == 2 * SPEC.steps + 1 - number
    files = {str(path) for path in world.home.adapters.rglob("*.safetensors")}
    assert files == {version.path for version in world.store.versions.on_disk(world.task)}


async def test_without_moments_it_goes_on_with_a_new_optimizer(tmp_path: Path) -> None:
    world = await done(tmp_path)
    assert [row["resumable"] for row in world.query("SELECT resumable FROM versions WHERE number = 1")] == [0]
    await roll_back(world.store, world.task, 1)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    check_history(world)
    assert [row["restarted"] for row in world.query("SELECT restarted FROM versions WHERE number = 1")] == [1]
    told = [row["message"] for row in world.query("SELECT message FROM events WHERE kind = 'task'")]
    assert "goes on from task-1/policy-v1-i1, with a new optimizer" in told[0]


async def test_only_groups_of_void_versions_are_played_again(tmp_path: Path) -> None:
    world = await done(tmp_path)
    await roll_back(world.store, world.task, 3)
    waiting = world.query("SELECT number, version, step FROM groups WHERE split = 'train' AND state = 'complete'")
    assert all(row["version"] <= 3 and row["step"] is None and row["number"] >= 6 for row in waiting)
    assert not world.query("SELECT 1 FROM groups WHERE split = 'train' AND version > 3")


async def test_it_is_done_again_where_the_engine_died_before_it_ended(tmp_path: Path) -> None:
    world = await done(tmp_path)
    policy = world.store.versions.on_disk(world.task)[0].policy
    world.store.versions.void_after(policy, 2)
    await roll_back(world.store, world.task, 2)
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    check_history(world)


@pytest.mark.parametrize("state", ["submitted", "queued", "running"])
async def test_a_task_that_may_run_is_refused(tmp_path: Path, state: str) -> None:
    world = await done(tmp_path)
    world.store.tasks.set_state(world.task, state)
    with pytest.raises(ConfigError, match=f"A task that is {state} cannot be rolled back. Only paused, done"):
        await roll_back(world.store, world.task, 2)


async def test_an_impossible_rollback_changes_nothing(tmp_path: Path) -> None:
    world = await done(tmp_path)
    third, fourth = (Path(version.path) for version in world.store.versions.on_disk(world.task)[3:5])
    payload, moments = fourth.read_bytes(), read_state(fourth).moment2["m.lora_A"].tobytes()
    place = payload.rindex(moments)  # adapter and moments are alike here; this is the last of them
    fourth.write_bytes(payload[:place] + bytes(len(moments)) + payload[place + len(moments) :])
    third.unlink()
    for number, words in (
        (9, "no version 9 on disk. On disk: 0, 1"),
        ("2", "no version 2"),
        (None, "None"),
    ):
        with pytest.raises(AdapterError, match=words):
            await roll_back(world.store, world.task, number)
    for number, words in ((3, "is gone"), (4, "is damaged: its checksum")):
        with pytest.raises(AdapterError, match=words):
            await roll_back(world.store, world.task, number)
    with pytest.raises(ConfigError, match="Version 5 of task 1 is its last"):
        await roll_back(world.store, world.task, 5)
    change(world.home.database, "UPDATE tasks SET base = 'other'")
    with pytest.raises(ConfigError, match="another base"):
        await roll_back(world.store, world.task, 2)
    assert world.store.tasks.state(world.task) == "done" and not numbers(world, "void")


async def test_the_engine_carries_it_out_and_the_task_ends_again(tmp_path: Path) -> None:
    world = World(tmp_path, KEPT)
    async with serving(world, slots=1):
        await reaches(world, world.task, "done")
        sent = command(world.home.database, "rollback", world.task, version=2)
        async with asyncio.timeout(50):
            while world.store.tasks.new_commands():
                await asyncio.sleep(0)
        await reaches(world, world.task, "done")
    assert world.query(f"SELECT outcome FROM commands WHERE id = {sent}") == [{"outcome": ""}]
    check_history(world)
    assert numbers(world, "void") == [3, 4, 5]
