"""Trainers on unlike processors: what must repeat itself stays at those that give its bits, others go anywhere."""

from __future__ import annotations

import asyncio
from typing import cast

import pytest

from marlaas.engine.errors import WorkerDied
from marlaas.engine.fairness.line import Ledger, Line, Payer
from marlaas.engine.machine.trainers import Call, SharedTrainer, TaskTrainer, TrainerPool
from marlaas.engine.trainer.protocol import Trainer

from .test_trainer import group
from .test_trainer_pool import CONFIG, Bench, Device, settle


class Unlike(Bench):
    """The second of three trainers is on another processor than the others."""

    def __init__(self) -> None:
        super().__init__(3)
        self.moving()

    def moving(self) -> None:
        self.pool = TrainerPool([self.on(name) for name in self.devices], True, self.said.append, lambda: self.now)
        self.pool.move_seconds = 0.01

    def on(self, name: str) -> SharedTrainer:
        device, line = cast(Trainer, self.devices[name]), Line[Call](clock=self.clock)
        like = "Xeon" if name == "training-2" else "EPYC"
        return SharedTrainer(device, line, Ledger(), name=name, now=lambda: self.now, like=like)

    def exact(self) -> TaskTrainer:
        return TaskTrainer(self.pool, Payer("ann", 2), alone=True)


async def test_what_must_repeat_itself_opens_where_its_bits_are() -> None:
    bench = Unlike()
    for number in range(4):
        await bench.exact().open(f"exact{number}", CONFIG, "path", False)
        await bench.open(f"free{number}")
    assert not any(policy.startswith("exact") for policy in bench.devices["training-2"].states)
    assert any(policy.startswith("free") for policy in bench.devices["training-2"].states)


async def test_it_moves_among_processors_that_are_alike_alone() -> None:
    bench = Unlike()
    await bench.open("a")
    await bench.exact().open("exact", CONFIG, "path", False)
    assert bench.homes() == {"a": "training", "exact": "training-3"}
    await bench.learn()
    first = asyncio.ensure_future(bench.exact().accumulate("exact", (group(500),)))
    await settle()
    await bench.exact().open("more", CONFIG, "path", False)
    assert bench.homes()["more"] == "training", "the other one of its kind"
    await bench.finish(first)


async def test_it_waits_for_the_successor_of_its_only_trainer() -> None:
    bench = Unlike()
    bench.pool.lose("training")
    bench.pool.lose("training-3")
    opening = asyncio.ensure_future(bench.exact().open("exact", CONFIG, "path", False))
    await settle()
    assert not opening.done()
    bench.devices["training-3"] = Device("training-3")
    bench.pool.take_in(bench.on("training-3"))
    await opening
    assert bench.homes() == {"exact": "training-3"}


async def test_it_is_told_where_all_begin_anew() -> None:
    bench = Unlike()
    bench.pool.lose("training")
    bench.pool.lose("training-3")
    opening = asyncio.ensure_future(bench.exact().open("exact", CONFIG, "path", False))
    await settle()
    bench.pool.end()
    with pytest.raises(WorkerDied, match="this policy's bits"):
        await opening
