"""Groups whose environment ranks them: the ranking trains, a failed one is filled again, evaluation knows none."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.environments.protocol import EpisodeOutcome, Ranking
from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.train.drawing import STRIDE
from marlaas.engine.trajectories import Failure

from ...queue.scheduler.world import World
from ..test_learning import SPEC, check_history

BROKEN = EpisodeOutcome("error", failure=Failure("1 rewards for 2 episodes", "env.py", 9))


def by_place(members: Sequence[EpisodeOutcome]) -> Ranking:
    """The first is the best."""
    return Ranking(tuple({"agent": -float(place)} for place, _ in enumerate(members)))


@pytest.fixture
def world(tmp_path: Path) -> World:
    made = World(tmp_path, replace(SPEC, train=replace(SPEC.train, group_size=3)))
    made.environments.score = lambda spec: 0.5
    made.environments.ranking = by_place
    return made


def rows(world: World, split: str) -> list[tuple[int, float | None, float, str]]:
    found = world.query(
        "SELECT j.member, j.reward, j.advantage, j.parts FROM trajectories j"
        f" JOIN groups g ON g.id = j.\"group\" WHERE g.split = '{split}'"
    )
    return [(row["member"], row["reward"], row["advantage"], row["parts"]) for row in found]


async def test_the_ranking_trains_and_evaluation_knows_none(world: World) -> None:
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    check_history(world)
    assert {(member, reward, advantage) for member, reward, advantage, _ in rows(world, "train")} == {
        (0, 0.0, 1.0),
        (1, -1.0, 0.0),
        (2, -2.0, -1.0),
    }
    assert {parts for *_, parts in rows(world, "train")} == {'{"own_reward": 0.5}'}
    assert {(reward, parts) for _, reward, _, parts in rows(world, "eval")} == {(0.5, "{}")}


async def test_who_has_no_reward_is_not_ranked(world: World) -> None:
    world.spec = replace(world.spec, train=replace(world.spec.train, min_members=2))
    world.environments.failing = lambda spec: spec.split == "train" and spec.member == 0
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    assert {(member, reward) for member, reward, *_ in rows(world, "train")} == {(0, None), (1, 0.0), (2, -1.0)}


async def test_a_group_with_a_failed_ranking_is_filled_again(world: World) -> None:
    calls = []

    def sometimes(members: Sequence[EpisodeOutcome]) -> Ranking | EpisodeOutcome:
        calls.append(members)
        return BROKEN if len(calls) == 4 else by_place(members)

    world.environments.ranking = sometimes
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")
    check_history(world)
    again = [row["instance"] - row["number"] for row in world.query("SELECT * FROM groups WHERE split = 'train'")]
    assert sorted(again) == [0] * 9 + [STRIDE] and len(calls) == 11
    assert all(reward is not None for _, reward, *_ in rows(world, "train"))


async def test_a_ranking_that_keeps_failing_pauses_the_task(world: World) -> None:
    world.environments.ranking = lambda members: BROKEN
    ending = await asyncio.wait_for(world.go(), 50)
    assert ending.state == "paused" and "1 rewards for 2 episodes (env.py, line 9)" in ending.reason.words
    assert not rows(world, "train")


async def test_workers_that_die_while_a_group_is_ranked_cost_nothing(world: World) -> None:
    run = asyncio.ensure_future(world.go())
    for _ in range(4):
        for _ in range(120):
            await asyncio.sleep(0)
        world.kill_workers()
    assert await asyncio.wait_for(run, 50) == Ending("done")
    check_history(world)
    assert {(member, reward) for member, reward, *_ in rows(world, "train")} == {(0, 0.0), (1, -1.0), (2, -2.0)}
