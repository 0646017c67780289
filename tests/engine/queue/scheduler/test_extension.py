"""A task gets more steps: made longer, it is bit for bit the task that had them from the start."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.errors import AdapterError, ConfigError
from marlaas.engine.queue.scheduler.commands import delete_versions, extend
from marlaas.engine.spec.task import EvalSpec, TaskSpec
from marlaas.engine.store.rows import Reason
from marlaas.engine.store.submissions import command

from ...by_hand import change
from ...train.test_learning import SPEC, check_history
from .test_scheduler import reaches, serving
from .world import World

EXACT = replace(SPEC, train=replace(SPEC.train, deterministic=True, max_staleness=0), eval=EvalSpec(every=0, prompts=3))


async def ended(task: int) -> None:
    """Nothing runs that would have to end."""


async def go(world: World, spec: TaskSpec) -> None:
    world.spec = spec
    assert (await asyncio.wait_for(world.go(), 50)).state == "done"
    world.store.tasks.set_state(world.task, "done")


def trained(world: World) -> list[object]:
    sql = "SELECT number, checksum FROM versions WHERE state != 'void' ORDER BY number"
    return [(row["number"], row["checksum"]) for row in world.query(sql)]


async def test_made_longer_is_long_from_the_start(tmp_path: Path) -> None:
    long = World(tmp_path / "long", replace(EXACT, steps=2 * EXACT.steps))
    await go(long, long.spec)
    short = World(tmp_path / "short", EXACT)
    await go(short, EXACT)
    await extend(short.store, short.task, 2 * EXACT.steps, ended)
    assert short.store.tasks.state(short.task) == "queued"
    await go(short, short.store.tasks.spec(short.task))
    check_history(short)
    assert trained(short) == trained(long) and len(trained(short)) == 2 * EXACT.steps + 1


async def test_the_engine_takes_up_a_task_that_runs_or_is_done(tmp_path: Path) -> None:
    world = World(tmp_path, EXACT)
    async with serving(world, slots=1):
        async with asyncio.timeout(50):
            while not world.store.tasks.steps_made(world.task):
                await asyncio.sleep(0)
        for steps in (EXACT.steps + 2, EXACT.steps + 5):
            sent = command(world.home.database, "extend", world.task, steps=steps)
            async with asyncio.timeout(50):
                while world.store.tasks.new_commands():
                    await asyncio.sleep(0)
            assert world.query(f"SELECT outcome FROM commands WHERE id = {sent}") == [{"outcome": ""}]
            await reaches(world, world.task, "done")
    assert world.query("SELECT step FROM policies") == [{"step": EXACT.steps + 5}]
    told = [row["message"] for row in world.query("SELECT message FROM events WHERE message LIKE '%more steps%'")]
    assert told == [
        f"The task has 2 more steps, {EXACT.steps + 2} all told; it is queued.",
        f"The task has 3 more steps, {EXACT.steps + 5} all told; it is queued.",
    ]
    world.spec = world.store.tasks.spec(world.task)
    check_history(world)


@pytest.mark.parametrize("state", ["submitted", "queued", "paused"])
async def test_what_waits_goes_on_waiting(tmp_path: Path, state: str) -> None:
    world = World(tmp_path, EXACT)
    world.store.tasks.set_state(world.task, state, Reason(words="why it waits"))
    await extend(world.store, world.task, 50, ended)
    assert (world.store.tasks.state(world.task), world.store.tasks.reason(world.task)) == (state, "why it waits")
    assert world.store.tasks.spec(world.task).steps == 50
    await extend(world.store, world.task, 50, ended)  # an engine that died before it wrote the outcome
    assert world.query("SELECT steps FROM tasks") == [{"steps": 50}]


async def refused(world: World, steps: object, words: str) -> None:
    before = world.query("SELECT state, steps, config FROM tasks")
    with pytest.raises((ConfigError, AdapterError), match=words):
        await extend(world.store, world.task, steps, ended)
    assert world.query("SELECT state, steps, config FROM tasks") == before


async def test_more_is_a_larger_number(tmp_path: Path) -> None:
    world = World(tmp_path, EXACT)
    for steps in (EXACT.steps - 1, 0, -1, "9", None, True, 9.0):
        await refused(world, steps, f"has {EXACT.steps} steps and can only be given more")
    await refused(world, 10**9, "steps")


@pytest.mark.parametrize("state", ["failed", "cancelled"])
async def test_only_what_has_not_failed_is_extended(tmp_path: Path, state: str) -> None:
    world = World(tmp_path, EXACT)
    world.store.tasks.set_state(world.task, state)
    await refused(world, 50, f"A task that is {state} cannot be extended")


async def test_a_rate_that_has_begun_to_fall_does_not_rise_again(tmp_path: Path) -> None:
    falling = replace(EXACT, train=replace(EXACT.train, schedule="cosine"))
    world = World(tmp_path, falling)
    await extend(world.store, world.task, EXACT.steps + 1, ended)  # no step was made
    await go(world, world.store.tasks.spec(world.task))
    await refused(world, 50, f"falls .cosine. towards 0 at step {EXACT.steps + 1}")


async def test_steps_are_no_cure_for_what_ended_it(tmp_path: Path) -> None:
    world = World(tmp_path, EXACT)
    await go(world, EXACT)
    change(world.home.database, "UPDATE policies SET step = 3")
    world.store.tasks.set_state(world.task, "done", Reason(words="Nothing was left to learn."))
    await refused(world, 50, f"done at step 3 of {EXACT.steps}, before its last.*Nothing was left to learn")


async def test_a_target_that_was_reached_at_the_last_step(tmp_path: Path) -> None:
    world = World(tmp_path, replace(EXACT, eval=EvalSpec(every=0, prompts=3, target=-5.0)))
    await go(world, world.spec)
    await refused(world, 50, "has reached its target: it would end at once")


async def test_without_its_adapter_there_is_nothing_to_go_on_from(tmp_path: Path) -> None:
    world = World(tmp_path, EXACT)
    await go(world, EXACT)
    change(world.home.database, "UPDATE tasks SET base = 'other'")
    await refused(world, 50, "another base")
    change(world.home.database, "UPDATE tasks SET base = ''")
    await delete_versions(world.store, world.task, None)
    await refused(world, 50, "Its adapter is not on the disk")
