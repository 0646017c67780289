"""One of two trainers dies under a task: the task goes on from its last commit, and nothing else begins anew."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import cast

from marlaas.engine.fairness.line import Ledger, Line
from marlaas.engine.machine.trainers import SharedTrainer, TrainerPool
from marlaas.engine.trainer.protocol import Trainer

from ...train.test_learning import SPEC
from .world import FakeTrainer, World


def one(world: World, name: str) -> SharedTrainer:
    return SharedTrainer(cast(Trainer, FakeTrainer(world.workers)), Line(), Ledger(), name=name)


def committed(world: World) -> int:
    return len(world.query("select 1 from steps"))


async def test_a_task_survives_the_death_of_its_trainer(tmp_path: Path) -> None:
    world, runs = World(tmp_path, SPEC), list[object]()
    world.trainers = TrainerPool([one(world, "training"), one(world, "training-2")])
    workers = world.workers
    running = asyncio.ensure_future(world.go(runs.append))
    for died in range(1, 3):
        while committed(world) < died or not world.trainers._homes:  # it may be between two of its runs
            await asyncio.sleep(0)
        (home,) = world.trainers._homes.values()
        world.trainers.lose(home.trainer.name)
        world.trainers.take_in(one(world, home.trainer.name))
    ending = await running
    assert ending.state == "done" and committed(world) == SPEC.steps
    assert len(runs) == 3, "it began again after each death"
    assert world.workers is workers and not workers.lost.is_set()
