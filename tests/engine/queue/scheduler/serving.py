"""The real scheduler over a ``World``, a clock that is moved by hand, and waiting for what the engine does."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

from marlaas.engine.machine.supervisor import WorkerSupervisor
from marlaas.engine.queue.scheduler.scheduler import Scheduler
from marlaas.engine.store.submissions import command

from .world import World

Heard = list[tuple[str, int, str]]
"""Event, task, and the state that the store had at that moment."""


class Time:
    """Seconds since 1970, moved by hand."""

    now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


@asynccontextmanager
async def serving(
    world: World, slots: int = 4, clock: Callable[[], float] = time.time, heard: Heard | None = None
) -> AsyncIterator[Scheduler]:
    """An engine while the block runs; what it reports of tasks is added to ``heard``."""

    def tell(event: str, task: int) -> None:
        if heard is not None:
            heard.append((event, task, world.store.tasks.state(task)))

    scheduler = Scheduler(world.store, cast(WorkerSupervisor, world), slots, clock, tell, patience=60.0)
    run = asyncio.ensure_future(scheduler.run())
    yield scheduler
    scheduler.stop()
    await run


async def until(world: World, suits: Callable[[str, str], bool], task: int = 1) -> str:
    """Wait until a task's state and reason are as wanted; returns the reason."""
    async with asyncio.timeout(50):
        while True:
            (row,) = world.query(f"SELECT state, reason FROM tasks WHERE id = {task}")
            if suits(row["state"], row["reason"]):
                return str(row["reason"])
            await asyncio.sleep(0)


async def reaches(world: World, task: int, state: str) -> str:
    """Wait until a task is in a state; returns its reason."""
    return await until(world, lambda now, reason: now == state, task)


async def waits(world: World, words: str, task: int = 1) -> str:
    """Wait until a task is queued for a reason with these words; returns the reason."""
    return await until(world, lambda now, reason: now == "queued" and words in reason, task)


async def answered(world: World, kind: str, task: int | None = None, **arguments: Any) -> str:
    """Give a command as the app does, and wait for its outcome."""
    number = command(world.home.database, kind, task, **arguments)
    async with asyncio.timeout(50):
        while not (rows := world.query(f"SELECT outcome FROM commands WHERE id = {number} AND done IS NOT NULL")):
            await asyncio.sleep(0)
    return str(rows[0]["outcome"])
