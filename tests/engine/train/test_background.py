"""Work beside the training loop: its first failure ends the loop, its producers can be cut off."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.train.admission import Background


async def test_a_failure_ends_the_body_and_is_raised() -> None:
    async def fail() -> None:
        raise ValueError("broken")

    with pytest.raises(ValueError, match="broken"):
        async with Background() as background:
            background.start(fail())
            await asyncio.Event().wait()
    current = asyncio.current_task()
    assert current is not None and not current.cancelling()


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


async def test_what_fails_while_it_is_cut_off_interrupts_nobody() -> None:
    ended = []

    async def fails_at_its_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise ValueError("too late")

    async def slow_end() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            for _ in range(5):
                await asyncio.sleep(0)
            ended.append(1)

    with pytest.raises(KeyError):
        async with Background() as background:
            background.start(fails_at_its_end())
            background.start(slow_end())
            await asyncio.sleep(0)
            raise KeyError("the body's own")
    assert ended == [1]
    current = asyncio.current_task()
    assert current is not None and not current.cancelling()


async def test_a_body_that_fails_at_the_same_time_keeps_its_own_error() -> None:
    failed = asyncio.Event()

    async def fail() -> None:
        failed.set()
        raise ValueError("broken")

    with pytest.raises(KeyError):
        async with Background() as background:
            background.start(fail())
            try:
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                raise KeyError("the body's own") from None
    current = asyncio.current_task()
    assert current is not None and not current.cancelling()
    await asyncio.sleep(0)
