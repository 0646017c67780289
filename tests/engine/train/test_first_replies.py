"""Limits that a task file leaves to ``auto`` are measured once, before the first step, and kept with the task."""

from __future__ import annotations

import asyncio
import contextlib
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from marlaas.engine.queue.scheduler.scheduler import Ending
from marlaas.engine.spec.automatic import BaseTraits
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec
from marlaas.engine.trainer.protocol import PolicyConfig, StepResult

from ..queue.scheduler.world import World
from .test_learning import SPEC, check_history

WIDE = BaseTraits(576, 256)
AUTO = replace(SPEC, steps=2, sampling=SamplingSpec(), eval=EvalSpec(every=0, prompts=2))


def world_of(root: Path, spec: TaskSpec = AUTO, seed: int = 0) -> World:
    world = World(root, spec, seed)
    world.traits = WIDE
    return world


def config(world: World) -> dict[str, Any]:
    (row,) = world.query(f"SELECT config FROM tasks WHERE id = {world.task}")
    return dict(json.loads(row["config"]))


def chosen(world: World) -> tuple[Any, ...]:
    sampling = config(world)["sampling"]
    return config(world)["train"]["learning_rate"], sampling["max_tokens"], sampling["max_episode_tokens"]


async def go(world: World) -> None:
    assert await asyncio.wait_for(world.go(), 50) == Ending("done")


async def test_a_task_is_trained_with_what_its_first_replies_ask_for(tmp_path: Path) -> None:
    world, opened = world_of(tmp_path), list[PolicyConfig]()
    opens = world.workers.trainer.open

    async def noted(policy: str, config: PolicyConfig, path: str, resume: bool) -> StepResult:
        opened.append(config)
        return await opens(policy, config, path, resume)

    world.workers.trainer.open = noted  # type: ignore[method-assign]
    await go(world)
    check_history(world)
    rate, most, whole = chosen(world)
    assert rate == 1.4e-4 and most % 32 == 0 and 32 <= most <= 128 and most <= whole <= 256
    events = [row["message"] for row in world.query("SELECT message FROM events WHERE kind = 'auto' ORDER BY id")]
    assert events[0] == "Chosen for this task by its base: train.learning_rate = 0.00014."
    assert "replies; they have" in events[1] and f"sampling.max_tokens = {most}" in events[1]
    spans = [span for row in world.query("SELECT spans FROM trajectories") for span in json.loads(row["spans"])]
    assert max(stop - start for start, stop, *_ in spans) <= most, "all groups and evaluations have the same limit"
    assert [one.denominator for one in opened] == [4.0 * 256, 4.0 * whole], "the loss divides by it from step 1 on"


async def test_whoever_plays_them_finds_the_same(tmp_path: Path) -> None:
    found = []
    for number, seed in enumerate((1, 2)):
        world = world_of(tmp_path / str(number), seed=seed)
        running = asyncio.ensure_future(world.go())
        if number:  # the engine dies while first replies are played, and once more after that
            for turns in (60, 400):
                for _ in range(turns):
                    await asyncio.sleep(0)
                running.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await running
                world.restart()
                running = asyncio.ensure_future(world.go())
        assert await asyncio.wait_for(running, 50) == Ending("done")
        found.append(chosen(world))
    assert found[0] == found[1]


async def test_the_numbers_of_the_author_are_left_alone(tmp_path: Path) -> None:
    limits = SamplingSpec(max_tokens=3, max_episode_tokens=9)
    world = world_of(tmp_path, replace(AUTO, sampling=limits, train=replace(AUTO.train, learning_rate=1e-5)))
    await go(world)
    assert chosen(world) == (1e-5, 3, 9)
    assert not world.query("SELECT * FROM events WHERE kind = 'auto'")
    (row,) = world.query("SELECT code, step FROM findings")
    assert row["code"] == "cut_replies", "it is only warned of"
