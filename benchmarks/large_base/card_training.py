"""Tokens a second that the trainer takes in for 1, 8 and 32 policies, one after another and in shared passes."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from time import perf_counter

from marlaas.engine.training.inputs import PolicyConfig, TrainGroup
from marlaas.engine.training.protocol import GroupStats, Job, Trainer

from ..report.figures import Row, Series
from ..trainer.cases import MEMBERS, Case
from .card_stage import RANK, Stage

CASE = Case("groups of 8, prompts of 128 tokens, answers of 64", "", 128, 64, groups=2)
CONFIG = PolicyConfig(rank=RANK, alpha=2.0 * RANK, denominator=64.0)
USEFUL = 4
"""Operations for each weight and row: forward, and the way back to the adapters. The base has no gradient."""
LEAST = 2
"""Rounds, however long they take, if the clock allows."""


async def training(stage: Stage, counts: Sequence[int], window: float) -> list[Row]:
    """Each number of policies for ``window`` seconds, after a round that warms up. What has no time is left."""
    groups = tuple(CASE.draw(stage.base.config.vocab_size))
    worker = await stage.trainer().spawn(stage.folder)
    rows: list[Row] = []
    try:
        trainer: Trainer = worker.proxy(Trainer)
        for policy in range(max(counts)):
            await trainer.open(f"p{policy}", CONFIG, str(stage.folder / f"p{policy}.safetensors"), False)
        for policies in counts:
            if stage.clock.left < window:
                break
            sliced = await _rates(stage, partial(_in_turn, trainer, stage, groups, policies), policies, window / 2)
            fused = sliced
            if policies > 1:
                fused = await _rates(stage, partial(_fused, trainer, stage, groups, policies), policies, window / 2)
            rows += _rows(stage, policies, fused, sliced)
    finally:
        await worker.stop()
    return rows


def operations(stage: Stage) -> float:
    """Of the base's matrix products, for each token that is counted: a group's prompt is computed once, and the head
    multiplies answers alone."""
    answers = MEMBERS * CASE.answer
    group = USEFUL * (stage.layers * (CASE.prompt + answers) + stage.head * answers)
    return group / (MEMBERS * (CASE.prompt + CASE.answer))


async def _rates(stage: Stage, run: Callable[[], Awaitable[None]], policies: int, window: float) -> tuple[float, ...]:
    """Tokens of all sequences a second, round by round."""
    tokens = policies * CASE.groups * MEMBERS * (CASE.prompt + CASE.answer)
    await run()
    found: list[float] = []
    end = perf_counter() + window
    while (len(found) < LEAST and stage.clock.left > 0) or perf_counter() < end or not found:
        started = perf_counter()
        await run()
        found.append(tokens / (perf_counter() - started))
    return tuple(found)


async def _in_turn(trainer: Trainer, stage: Stage, groups: tuple[TrainGroup, ...], policies: int) -> None:
    async def step(policy: int) -> None:
        await trainer.accumulate(f"p{policy}", groups)
        await trainer.step(f"p{policy}", str(stage.folder / f"p{policy}.safetensors"))

    await asyncio.gather(*(step(policy) for policy in range(policies)))


async def _fused(trainer: Trainer, stage: Stage, groups: tuple[TrainGroup, ...], policies: int) -> None:
    done = await trainer.accumulate_together(tuple(Job(f"p{policy}", groups) for policy in range(policies)))
    if not all(isinstance(stats, GroupStats) for stats in done):
        raise RuntimeError(f"a job was refused: {done}")
    paths = (str(stage.folder / f"p{policy}.safetensors") for policy in range(policies))
    await asyncio.gather(*(trainer.step(f"p{policy}", path) for policy, path in enumerate(paths)))


def _rows(stage: Stage, policies: int, fused: tuple[float, ...], sliced: tuple[float, ...]) -> list[Row]:
    pairs = min(len(fused), len(sliced))
    ours, other = Series(fused[-pairs:]), Series(sliced[-pairs:])
    if policies == 1:
        rows = [Row("trained, 1 adapter", "tokens/s", ours, higher_is_better=True)]
    else:
        rows = [Row(f"trained fused, {policies} adapters", "tokens/s", ours, other, "time-sliced", True)]
    if stage.rates is not None:
        share = 100 * ours.middle * operations(stage) / stage.rates.matrix
        rows.append(Row("… share of the matrix rate", "%", Series((share,)), higher_is_better=True))
    return rows
