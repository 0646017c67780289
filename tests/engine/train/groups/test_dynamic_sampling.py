"""Groups of equal rewards are replaced, a few times each, and a restart changes nothing about it."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.train.drawing import STRIDE

from ...queue.scheduler.world import World
from ..test_learning import SPEC, check_history

LIMIT = SPEC.train.dynamic_limit
DYNAMIC = replace(SPEC, train=replace(SPEC.train, dynamic_sampling=True))


async def ends(world: World) -> Ending:
    return await asyncio.wait_for(world.go(), 50)


def groups(world: World) -> dict[int, tuple[int, int]]:
    """By number: at which attempt the group was taken, and how many it replaced."""
    rows = world.query("SELECT * FROM groups WHERE split = 'train'")
    return {row["number"]: ((row["instance"] - row["number"]) // STRIDE, row["replaced"]) for row in rows}


def metric(world: World, name: str) -> list[float]:
    """A metric, step by step."""
    return [row["value"] for row in world.query(f"SELECT value FROM metrics WHERE name = '{name}' ORDER BY step")]


def by_member(spec: EpisodeSpec) -> float:
    return float(spec.member)


async def test_a_group_of_equal_rewards_is_replaced_and_counted(tmp_path: Path) -> None:
    world = World(tmp_path, DYNAMIC)
    world.environments.score = lambda spec: 1.0 if spec.index == 3 else by_member(spec)
    assert await ends(world) == Ending("done")
    check_history(world)
    assert groups(world) == {n: (1, 1) if n == 3 else (0, 0) for n in range(10)}
    assert metric(world, "replaced") == [0.0, 1.0, 0.0, 0.0, 0.0]


@pytest.mark.parametrize("limit", [1, 5])
async def test_a_task_of_nothing_but_equal_rewards_goes_on(tmp_path: Path, limit: int) -> None:
    """Each group is replaced up to the limit; then what there is counts, and nothing waits for ever."""
    world = World(tmp_path, replace(DYNAMIC, train=replace(DYNAMIC.train, dynamic_limit=limit)))
    world.environments.score = lambda spec: 1.0
    assert await ends(world) == Ending("done")
    check_history(world)
    assert set(groups(world).values()) == {(limit, limit)}
    assert metric(world, "replaced") == [float(limit * SPEC.train.groups_per_step)] * SPEC.steps
    assert metric(world, "discarded") == [limit / (limit + 1)] * SPEC.steps


async def test_failed_attempts_are_not_replacements(tmp_path: Path) -> None:
    world = World(tmp_path, DYNAMIC)
    world.environments.failing = lambda spec: spec.split == "train" and spec.index == 3
    world.environments.score = lambda spec: 1.0 if spec.index == 3 + STRIDE else by_member(spec)
    assert await ends(world) == Ending("done")
    assert groups(world)[3] == (2, 1)


@pytest.mark.parametrize(
    ("spec", "taken"),
    [
        (SPEC, 0),
        (replace(SPEC, train=replace(SPEC.train, loss="dapo")), LIMIT),
        (replace(SPEC, train=replace(SPEC.train, loss="dapo", dynamic_sampling=False)), 0),
    ],
    ids=["off by default", "on with dapo", "dapo without"],
)
async def test_it_belongs_to_dapo_and_can_be_chosen(tmp_path: Path, spec: TaskSpec, taken: int) -> None:
    world = World(tmp_path, replace(spec, steps=2))
    world.environments.score = lambda spec: 0.5
    assert await ends(world) == Ending("done")
    assert set(groups(world).values()) == {(taken, taken)}


async def test_a_restart_draws_the_same_instances(tmp_path: Path) -> None:
    def score(spec: EpisodeSpec) -> float:
        return 1.0 if spec.index % 3 == 0 else by_member(spec)

    runs = []
    for name, turns in (("whole", 0), ("killed", 120)):
        world = World(tmp_path / name, DYNAMIC)
        world.environments.score = score
        run = asyncio.ensure_future(world.go())
        for _ in range(4 if turns else 0):
            for _ in range(turns):
                await asyncio.sleep(0)
            world.kill_workers()
        assert await asyncio.wait_for(run, 50) == Ending("done")
        check_history(world)
        runs.append((groups(world), metric(world, "replaced")))
    assert runs[0] == runs[1]
    assert {count for _, count in runs[0][0].values()} >= {0, 1}
