"""Work beside the training loop: its first failure ends the loop, its producers can be cut off."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.orchestrator.background import Background


async def test_waits_for_what_was_started() -> None:
    done = []

    async def work() -> None:
        await asyncio.sleep(0)
        done.append(1)

    async with Background() as background:
        background.start(work())
        await background.finish()
    assert done == [1]


async def test_a_failure_ends_the_body_and_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        async with Background() as background:
            background.start(fail())
            await asyncio.Event().wait()
    current = asyncio.current_task()
    assert current is not None and not current.cancelling()


async def test_a_failure_just_before_the_end_is_not_lost() -> None:
    async def fail() -> None:
        raise ValueError("late")

    with pytest.raises(ValueError, match="late"):
        async with Background() as background:
            background.start(fail())
            await background.finish()


async def test_cancelling_from_outside_stays_a_cancellation() -> None:
    entered = asyncio.Event()
    ended = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.append(1)

    async def body() -> None:
        async with Background() as background:
            background.start(endless())
            background.produce(endless())
            await asyncio.sleep(0)
            entered.set()
            await asyncio.Event().wait()

    task = asyncio.ensure_future(body())
    await entered.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert ended == [1, 1]
