"""Groups that cannot close are filled again under the same number, or the task pauses and says why."""

from __future__ import annotations

import asyncio
import json
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.run.drawing import STRIDE
from marlaas.engine.scheduler.task_run import Ending
from marlaas.plugins.messages import Ask, Message

from ..scheduler.fake_environments import FakeEnvironments
from ..scheduler.world import World
from .test_learning import SPEC, check_history


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path, SPEC)


async def ends(world: World) -> Ending:
    return await asyncio.wait_for(world.go(), 20)


def instances(world: World) -> dict[int, int]:
    return {row["number"]: row["instance"] for row in world.query("SELECT * FROM groups WHERE split = 'train'")}


async def test_a_failed_group_is_filled_from_another_instance(world: World) -> None:
    world.environments.failing = lambda spec: spec.split == "train" and spec.index == 3
    assert await ends(world) == Ending("done")
    check_history(world)
    assert instances(world) == {n: n + STRIDE * (n == 3) for n in range(10)}


async def test_one_failed_member_costs_itself_alone(world: World) -> None:
    world.spec = replace(SPEC, train=replace(SPEC.train, group_size=3))
    world.environments.failing = lambda spec: spec.split == "train" and spec.member == 1
    assert await ends(world) == Ending("done")
    assert instances(world) == {n: n for n in range(10)}
    failed = world.query("SELECT reward FROM trajectories WHERE status = 'error'")
    assert len(failed) == 10 and all(row["reward"] is None for row in failed)


async def test_rewritten_turns_train_as_one_episode(world: World) -> None:
    world.environments.turns = 3
    world.renderer.rewrites = True
    assert await ends(world) == Ending("done")
    check_history(world)
    rows = world.query('SELECT t.* FROM trajectories t JOIN groups g ON g.id = t."group" ORDER BY t.id')
    episodes: dict[tuple[int, int], list[dict[str, object]]] = {}
    for row in rows:
        episodes.setdefault((row["group"], row["member"]), []).append(row)
    assert {len(parts) for parts in episodes.values()} == {3}
    assert all(len({(part["reward"], part["advantage"]) for part in parts}) == 1 for parts in episodes.values())
    asked = [next(turn["text"] for turn in json.loads(str(part["turns"]))) for part in episodes.popitem()[1]]
    assert [text.split()[-1] for text in asked] == ["0", "1", "2"]
    assert not world.workers.sampler.conversations


async def test_an_environment_that_keeps_failing_pauses_the_task(world: World) -> None:
    world.environments.failing = lambda spec: spec.split == "train"
    ending = await ends(world)
    assert ending.state == "paused" and "it broke (env.py, line 3)" in ending.reason.words
    assert not world.workers.sampler.conversations


async def test_held_out_prompts_are_never_trained_on(world: World) -> None:
    class Overlapping(FakeEnvironments):
        def ask_for(self, spec: EpisodeSpec, turn: int, agent: str) -> Ask:
            return Ask(agent=agent, messages=(Message("user", f"{spec.index} {turn}"),))

    world.environments = Overlapping(world.chance)
    assert await ends(world) == Ending("done")
    check_history(world)
    assert instances(world) == {n: n + STRIDE * (n < SPEC.eval.prompts) for n in range(10)}
