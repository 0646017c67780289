"""Passes that several policies share leave each tenant its share, on a device that only counts, in counted time."""

from __future__ import annotations

import asyncio
from collections import Counter
from heapq import heappop, heappush
from itertools import count

import pytest

from marlaas.engine.fairness.line import Payer

from .test_trainer import Bench, group, settle

AWAY, FIXED, TOKENS, SECONDS = 0.06, 0.03, 18, 60.0
"""Seconds of a task between two of its calls, and of a pass beside its tokens, which take a millisecond each; together
about what a small base takes on a processor."""


async def calls_of(tasks: dict[Payer, int], weights: dict[str, float], away: dict[str, float]) -> Counter[str]:
    """Calls by tenant within ``SECONDS`` of counted time; ``tasks`` are the tokens of each task's calls."""
    bench, made, order = Bench(True, weights, FIXED), Counter[str](), count()
    await bench.open("learnt", *(f"p{payer.task}" for payer in tasks))
    await bench.learn(10, 20, 30, 40)
    asleep: list[tuple[float, int, asyncio.Future[None]]] = []

    async def train(payer: Payer, tokens: int) -> None:
        task = bench.task(payer)
        while True:
            await task.accumulate(f"p{payer.task}", (group(tokens),))
            made[payer.tenant] += 1
            woken: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            heappush(asleep, (bench.now + away.get(payer.tenant, AWAY), next(order), woken))
            await woken

    running = [asyncio.ensure_future(train(payer, tokens)) for payer, tokens in tasks.items()]
    await settle()
    ends, passes = 0.0, 0
    while bench.now < SECONDS:
        if len(bench.device.calls) > passes:  # a pass has begun
            passes = len(bench.device.calls)
            together = bench.device.calls[-1].split("+")
            tokens = sum(size for payer, size in tasks.items() if f"p{payer.task}" in together)
            ends = bench.now + FIXED + tokens / 1000
        if bench.device.under_way and (not asleep or ends <= asleep[0][0]):
            bench.now = ends
            await bench.device.finish_one()
        else:
            bench.now, _, woken = heappop(asleep)
            woken.set_result(None)
            await settle()
    for task in running:
        task.cancel()
    bench.now = SECONDS
    while bench.device.under_way:
        await bench.device.finish_one()
    await asyncio.gather(*running, return_exceptions=True)
    return made


def tasks_of(tenant: str, first: int, number: int, tokens: int = TOKENS) -> dict[Payer, int]:
    return {Payer(tenant, first + place): tokens for place in range(number)}


async def test_weights_hold_where_calls_share_passes() -> None:
    """Else two passes take turns, in which every policy is once. With fewer tasks bob would be away at times."""
    tasks = tasks_of("ann", 0, 8) | tasks_of("bob", 10, 8)
    made = await calls_of(tasks, {"bob": 3.0}, {})
    assert made["bob"] / made.total() == pytest.approx(0.75, rel=0.1), "promise 7 of the design"


async def test_a_lone_task_has_half_beside_eight_that_share_passes() -> None:
    """Within what it can use: it is away for more than half of the time that a call of its own takes it."""
    alone = (await calls_of({Payer("bob", 9): TOKENS}, {}, {}))["bob"]
    made = await calls_of(tasks_of("ann", 0, 8) | {Payer("bob", 9): TOKENS}, {}, {})
    assert made["bob"] > 0.45 * alone
    assert made["ann"] > made["bob"], "what it does not use is theirs"


async def test_equal_tenants_share_whole_passes() -> None:
    """Nobody is ahead, so nothing is lost: as many calls as one tenant makes with as many tasks."""
    many = {Payer(f"t{number}", number): TOKENS for number in range(9)}
    one = (await calls_of(tasks_of("ann", 0, 9), {}, {})).total()
    assert (await calls_of(many, {}, {})).total() >= 0.97 * one


async def test_for_one_who_calls_rarely_others_share_whole_passes() -> None:
    """Its wait is short beside its own time away, however much more the others have had."""
    one = (await calls_of(tasks_of("ann", 0, 8), {}, {})).total()
    made = await calls_of(tasks_of("ann", 0, 8) | {Payer("bob", 9): TOKENS}, {}, {"bob": 2.0})
    assert made["ann"] >= 0.9 * one
    assert made["bob"] >= 0.9 * SECONDS / (2.0 + FIXED + TOKENS / 1000)
