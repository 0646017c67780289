"""Many tasks in front of few slots: what has begun stays few, and every task goes on at the pace of its share."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

import pytest

from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.queue.scheduler.scheduler import Ending, run_task
from marlaas.engine.rollout.episodes import Rollout
from marlaas.engine.spec.task import EvalSpec, TaskSpec, TrainSpec

from ..queue.scheduler.world import World

SLOTS, TASKS, SIZE, BATCH = 4, 8, 4, 4


def spec(number: int) -> TaskSpec:
    train = TrainSpec(groups_per_step=BATCH, group_size=SIZE, max_staleness=3, seed=number)
    return TaskSpec(
        f"tenant {number % 2}", f"task {number}", "sums", steps=2, train=train, eval=EvalSpec(every=0, prompts=1)
    )


async def test_few_episodes_live_whatever_the_number_of_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    live, most, play = 0, 0, Rollout.run_episode

    async def counted(*arguments: object, **named: object) -> object:
        nonlocal live, most
        live += 1
        most = max(most, live)
        try:
            return await play(*arguments, **named)  # type: ignore[arg-type]
        finally:
            live -= 1

    monkeypatch.setattr(Rollout, "run_episode", counted)
    specs = [spec(number) for number in range(TASKS)]
    world = World(tmp_path, specs[0], sequences=SLOTS, others=specs[1:])
    tasks = zip((world.task, *world.others), specs, strict=True)
    runs = (run_task(task, own, cast(WorkerSupervisor, world), lambda learner: None) for task, own in tasks)
    ends = await asyncio.wait_for(asyncio.gather(*runs), 120)
    assert ends == [Ending("done")] * TASKS
    begun_at_once = TASKS * 2 * BATCH * SIZE  # all that the bound on staleness allows
    assert most <= SLOTS + SLOTS + TASKS * 3 * SIZE < begun_at_once, "in slots, in line, and three groups of each task"
