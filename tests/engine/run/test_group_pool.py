"""Groups wait for their step, and the trainer for its groups."""

from __future__ import annotations

import asyncio

import numpy as np
import pytest

from marlaas.engine.run.admission import CALL_TOKENS, GroupPool
from marlaas.engine.training.advantages import ClosedGroup, RewardSummary
from marlaas.engine.trajectories import Episode, Group, Trajectory


def closed(number: int, tokens: int = 1) -> ClosedGroup:
    none, floats = np.zeros(tokens, np.uint8), np.zeros(tokens, np.float32)
    trajectory = Trajectory("agent", np.zeros(tokens, np.int32), none, floats, ())
    episode = Episode(0, "ok", (trajectory,))
    return ClosedGroup(Group(number, number, 0, "e", (episode,)), RewardSummary(2, 0.5, 0.5, False, 0.0, 1.0))


async def take(pool: GroupPool, wanted: set[int], one_by_one: bool = False) -> list[int]:
    return [closed.group.number for closed in await pool.take_ready(sorted(wanted), len(wanted), one_by_one)]


async def test_all_that_is_there_and_wanted_comes_at_once_in_order() -> None:
    pool = GroupPool(batch=8)
    waiting = asyncio.ensure_future(take(pool, {1, 2, 3}))
    await asyncio.sleep(0)
    for number in (3, 7, 1):
        pool.put(closed(number))
    assert await waiting == [1, 3]
    assert await take(pool, {7}) == [7]


async def test_a_step_begins_with_its_first_complete_group() -> None:
    pool = GroupPool(batch=4)
    waiting = asyncio.ensure_future(take(pool, {0, 1, 2, 3}))
    await asyncio.sleep(0)
    assert not waiting.done()
    pool.put(closed(2))
    assert await waiting == [2]


async def test_it_waits_for_half_of_the_rest() -> None:
    pool = GroupPool(batch=8)
    pool.put(closed(2))
    waiting = asyncio.ensure_future(take(pool, {0, 1, 2, 3}))
    await asyncio.sleep(0)
    assert not waiting.done()
    pool.put(closed(0))
    assert await waiting == [0, 2]
    pool.put(closed(3))
    assert await take(pool, {1, 3}) == [3]


async def test_no_call_is_so_large_that_others_wait_for_long() -> None:
    pool = GroupPool(batch=8)
    for number, tokens in enumerate((CALL_TOKENS // 2, CALL_TOKENS // 2, 1, 2 * CALL_TOKENS)):
        pool.put(closed(number, tokens))
    assert await take(pool, {0, 1, 2, 3}) == [0, 1]
    assert await take(pool, {2, 3}) == [2]
    assert await take(pool, {3}) == [3]


async def test_one_by_one_only_the_next_will_do() -> None:
    pool = GroupPool(batch=8)
    ordered = asyncio.ensure_future(take(pool, {1, 3}, one_by_one=True))
    pool.put(closed(3))
    await asyncio.sleep(0)
    assert not ordered.done()
    pool.put(closed(1))
    assert await ordered == [1]
    assert await take(pool, {3}, one_by_one=True) == [3]


async def test_a_producer_that_gave_up_is_heard() -> None:
    pool = GroupPool(batch=8)
    taking = asyncio.ensure_future(take(pool, {1}))
    await asyncio.sleep(0)
    pool.fail(ValueError("no environment"))
    with pytest.raises(ValueError, match="no environment"):
        await taking


@pytest.mark.parametrize("one_by_one", [False, True])
async def test_without_the_pipeline_a_step_begins_when_all_are_there(one_by_one: bool) -> None:
    pool = GroupPool(batch=3, whole=True)
    pool.put(closed(0))
    pool.put(closed(1))
    waiting = asyncio.ensure_future(take(pool, {0, 1, 2}, one_by_one))
    for _ in range(5):
        await asyncio.sleep(0)
    assert not waiting.done()
    pool.put(closed(2))
    assert await waiting == ([0] if one_by_one else [0, 1, 2])
