"""Each episode is charged with its own steps, and with those of its tasks."""

from __future__ import annotations

import asyncio
import inspect
import time

import pytest

from marlaas.plugins.host.meter import METER, Steps, Usage, charge_tasks, charged


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_each_is_charged_with_what_it_computes() -> None:
    loop, little, much = asyncio.get_running_loop(), Usage(), Usage()

    async def episode(steps: int) -> int:
        for _ in range(steps):
            compute(0.01)
            await asyncio.sleep(0)
        return steps

    tasks = [charged(loop, episode(1), little), charged(loop, episode(4), much)]
    assert await asyncio.gather(*tasks) == [1, 4]
    assert 0.01 <= little.on_loop < 0.04 <= much.on_loop, "the clock of a thread runs for nobody else"


async def test_tasks_of_an_episode_are_its_own() -> None:
    loop, usage = asyncio.get_running_loop(), Usage()

    async def branch() -> None:
        compute(0.01)

    async def episode() -> None:
        await asyncio.gather(branch(), branch())

    charge_tasks(loop)
    try:
        await charged(loop, episode(), usage)
        await branch()
    finally:
        loop.set_task_factory(None)
    assert 0.02 <= usage.on_loop < 0.03


async def test_a_sleeping_step_keeps_the_loop() -> None:
    usage, before = Usage(), METER.blocked

    async def episode() -> None:
        time.sleep(0.02)

    await charged(asyncio.get_running_loop(), episode(), usage)
    assert usage.blocked >= 0.019 and METER.blocked - before >= usage.blocked


async def test_it_looks_like_the_coroutine_inside() -> None:
    """Libraries ask a task whether its coroutine has begun."""

    async def episode() -> str:
        await asyncio.sleep(0)
        return "played"

    steps = Steps(episode(), Usage())
    assert inspect.getcoroutinestate(steps) == inspect.CORO_CREATED
    task = asyncio.get_running_loop().create_task(steps)
    await asyncio.sleep(0)
    assert inspect.getcoroutinestate(steps) == inspect.CORO_SUSPENDED
    assert "episode" in repr(task) and await task == "played"


async def test_cancelling_and_errors_go_through() -> None:
    loop, told = asyncio.get_running_loop(), []

    async def episode() -> None:
        try:
            await asyncio.Future()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise KeyError("lost") from None

    task = charged(loop, episode(), Usage())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(KeyError):
        await task
    assert told == ["cancelled"] and METER.step is None
