"""Groups wait for their step, and the trainer for its groups."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.orchestrator.pool import GroupPool
from marlaas.engine.training.advantages import ClosedGroup, RewardSummary
from marlaas.engine.types import Group


def closed(number: int) -> ClosedGroup:
    return ClosedGroup(Group(number, number, 0, "e", ()), RewardSummary(2, 0.5, 0.5, False))


async def test_takes_what_arrives_or_what_is_next() -> None:
    pool = GroupPool()
    pool.put(closed(2))
    assert (await pool.take({1, 2}, in_order=False)).group.number == 2
    ordered = asyncio.ensure_future(pool.take({1, 3}, in_order=True))
    pool.put(closed(3))
    await asyncio.sleep(0)
    assert not ordered.done()
    pool.put(closed(1))
    assert (await ordered).group.number == 1
    assert (await pool.take({3}, in_order=True)).group.number == 3


async def test_a_producer_that_gave_up_is_heard() -> None:
    pool = GroupPool()
    taking = asyncio.ensure_future(pool.take({1}, in_order=False))
    await asyncio.sleep(0)
    pool.fail(ValueError("no environment"))
    with pytest.raises(ValueError, match="no environment"):
        await taking
