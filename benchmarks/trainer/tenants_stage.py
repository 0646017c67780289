"""Training workers with open policies, tenants that call them through the engine's own line, and policies that move."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from time import perf_counter

from marlaas.engine.base.model import load_base
from marlaas.engine.fairness.fair_clock import SharedClock
from marlaas.engine.fairness.ledger import Ledger
from marlaas.engine.fairness.line import Line, Payer
from marlaas.engine.fleet.trainers import SharedTrainer, TaskTrainer, TrainerPool
from marlaas.engine.fleet.worker_specs import TRAINER, WorkerSpec
from marlaas.engine.training.inputs import PolicyConfig, TrainGroup
from marlaas.engine.training.protocol import Trainer

from ..report.figures import Row, Series
from .cases import CASES

TENANTS = 8
CONFIG = PolicyConfig(rank=16, alpha=32.0, denominator=64.0)

Arm = Callable[[], Awaitable[int]]
"""Runs once and returns how many policies have made a step."""


def policy(tenant: int) -> str:
    """What a tenant's policy is called."""
    return f"tenant-{tenant}"


@asynccontextmanager
async def trainer(name: str, folder: Path, cores: tuple[int, ...], slots: int = 0) -> AsyncIterator[Trainer]:
    """A training worker, as the engine starts it."""
    base = load_base("tiny")
    kwargs = {"base": str(base.path), "fingerprint": base.fingerprint, "threads": len(cores), "slots": slots}
    worker = await WorkerSpec(name, TRAINER, kwargs | {"scratch": str(folder)}, cores).spawn(folder)
    try:
        proxy: Trainer = worker.proxy(Trainer)
        yield proxy
    finally:
        await worker.stop()


async def through_line(
    groups: tuple[TrainGroup, ...],
    folder: Path,
    trainers: Sequence[Trainer],
    fuse: bool = False,
) -> Arm:
    """Each tenant accumulates all groups and makes a step, all at once, by the line of each trainer."""
    clock: SharedClock[str] = SharedClock()
    pool = TrainerPool(
        [
            SharedTrainer(each, Line(clock=clock), Ledger(), fuse, f"training-{number}")
            for number, each in enumerate(trainers)
        ]
    )
    tasks = [TaskTrainer(pool, Payer(policy(tenant), tenant), alone=False) for tenant in range(TENANTS)]
    for tenant, task in enumerate(tasks):
        await task.open(policy(tenant), CONFIG, str(folder / f"{tenant}.safetensors"), False)

    async def step(tenant: int) -> None:
        await tasks[tenant].accumulate(policy(tenant), groups)
        await tasks[tenant].step(policy(tenant), str(folder / f"{tenant}.safetensors"))

    async def run() -> int:
        await asyncio.gather(*map(step, range(TENANTS)))
        return TENANTS

    return run


async def moving_rows(folder: Path, cores: tuple[int, ...], repetitions: int) -> list[Row]:
    """How long a move takes in the middle of an accumulation.

    Raises ``RuntimeError`` where a policy that moves gets other bits than one that stays.
    """
    first, second = CASES[0].draw(load_base("tiny").config.vocab_size)[:2]
    files = {name: folder / f"{name}.safetensors" for name in ("stays", "moves")}
    seconds: list[float] = []
    async with trainer("here", folder, cores[:1]) as home, trainer("there", folder, cores[-1:]) as other:
        at, to = home, other
        for name, path in files.items():
            await home.open(name, CONFIG, str(path), False)
        for repetition in range(repetitions + 1):
            await home.accumulate("stays", (first,))
            await at.accumulate("moves", (first,))
            begun = perf_counter()
            await to.set_state("moves", await at.get_state("moves"))
            if repetition:  # the first warms up
                seconds.append(perf_counter() - begun)
            await at.close("moves")
            at, to = to, at
            await home.accumulate("stays", (second,))
            await at.accumulate("moves", (second,))
            await home.step("stays", str(files["stays"]))
            await at.step("moves", str(files["moves"]))
            if files["stays"].read_bytes() != files["moves"].read_bytes():
                raise RuntimeError("A policy that moved between two trainers got other bits than one that stayed.")
    took = Series(tuple(1000 * each for each in seconds))
    return [Row("a policy moves between two trainers, gradient included; same bits as one that stays", "ms", took)]
