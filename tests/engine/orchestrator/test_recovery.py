"""Where a policy goes on after its files were damaged, and what is left of the steps above."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.orchestrator.keeper import Keeper
from marlaas.engine.orchestrator.services import Services
from marlaas.engine.orchestrator.task_run import Ending
from marlaas.engine.spec import EvalSpec

from .test_learning import SPEC, check_history
from .world import World


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, replace(SPEC, eval=EvalSpec(every=0, prompts=3)))


async def ends(world: World) -> Ending:
    return await asyncio.wait_for(world.go(), 20)


def state_files(world: World) -> list[Path]:
    rows = world.query("SELECT path FROM versions WHERE state = 'committed' ORDER BY number")
    return [Path(row["path"]) for row in rows]


def measured(world: World) -> int:
    """How many versions have a score: 1 while the second is being measured."""
    return len(world.query("SELECT 1 FROM evals"))


@pytest.mark.parametrize("new_engine", [False, True])
async def test_a_policy_whose_files_are_all_lost_begins_anew(world: World, new_engine: bool) -> None:
    assert await ends(world) == Ending("done")
    for path in state_files(world):
        path.unlink()
    if new_engine:
        world.restart()
    assert await ends(world) == Ending("done")
    check_history(world)
    names = [row["name"] for row in world.query("SELECT name FROM versions")]
    assert len(set(names)) == len(names) == 2 * (SPEC.steps + 1)


async def test_groups_whose_tokens_were_given_up_are_played_again(world: World) -> None:
    """They wait again where the steps are lost that had consumed them, but there is nothing left to train on."""
    assert await ends(world) == Ending("done")
    await Keeper(world.store, world.task, 1, token_steps=1).retain(set())
    for path in state_files(world):
        path.unlink()
    assert await ends(world) == Ending("done")
    check_history(world)
    assert not world.query("SELECT 1 FROM groups WHERE split = 'train' AND shrunk")


async def test_a_damaged_file_costs_its_step(world: World) -> None:
    assert await ends(world) == Ending("done")
    state_files(world)[-1].write_bytes(b"damaged")
    assert await ends(world) == Ending("done")
    check_history(world)
    assert [row["state"] for row in world.query("SELECT state FROM versions WHERE number = 5 ORDER BY id")] == [
        "void",
        "committed",
    ]


async def test_steps_above_an_old_survivor_are_void(world: World) -> None:
    """The best version may be older than the two that are kept to go on from."""
    world.spec = replace(world.spec, eval=EvalSpec(every=2, prompts=3))
    world.environments.score = lambda spec: float(measured(world) == 1) if spec.split == "eval" else None
    assert await ends(world) == Ending("done")
    best, *newest = state_files(world)
    assert "-v2-" in best.name
    for path in newest:
        path.unlink()
    assert await ends(world) == Ending("done")
    check_history(world)


async def test_a_task_that_runs_short_of_room_waits_before_it_writes_and_then_goes_on(world: World) -> None:
    shortage = ""

    async def services() -> Services:
        return replace(await World.services(world), shortage=lambda: shortage)

    world.services = services  # type: ignore[method-assign]
    running = asyncio.ensure_future(world.go())
    while not world.query("SELECT 1 FROM steps WHERE number = 2"):
        await asyncio.sleep(0)
    shortage = "waiting for room on the disk: too little is free"
    assert await running == Ending("queued", shortage)
    before = len(world.query("SELECT 1 FROM steps"))
    assert before < SPEC.steps and await ends(world) == Ending("queued", shortage)
    assert len(world.query("SELECT 1 FROM steps")) == before
    shortage = ""
    assert await ends(world) == Ending("done")
    check_history(world)
