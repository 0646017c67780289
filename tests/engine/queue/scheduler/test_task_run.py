"""How often workers may die under a task, and which deaths count."""

from __future__ import annotations

import asyncio
from typing import Any

from marlaas.engine.errors import WorkerDied
from marlaas.engine.queue.scheduler.scheduler import MAX_LOSSES, Ending, paused, run_task

from ...train.test_learning import SPEC


class Dying:
    """A supervisor whose workers die at once, as often as it is asked for them."""

    yielding = None

    def __init__(self, mended: int) -> None:
        """The first ``mended`` deaths are followed by workers that make do with less."""
        self._mended = mended
        self.deaths = 0
        self.lost = asyncio.Event()
        self.lost.set()

    @property
    def mended(self) -> bool:
        return self.deaths <= self._mended

    async def noticed(self, since: int) -> None:
        """All are."""

    async def services(self) -> Any:
        self.deaths += 1
        raise WorkerDied("Worker rollout ended.")


async def ending(supervisor: Any) -> Ending:
    return await run_task(1, SPEC, supervisor, lambda learner: None)


async def test_a_task_whose_workers_keep_dying_pauses() -> None:
    supervisor = Dying(mended=0)
    words = f"Workers died {MAX_LOSSES} times after 0 steps of this task: Worker rollout ended."
    assert await ending(supervisor) == paused(words, again=True)
    assert supervisor.deaths == MAX_LOSSES


async def test_deaths_with_fewer_conversations_do_not_count() -> None:
    supervisor = Dying(mended=2 * MAX_LOSSES)
    assert (await ending(supervisor)).state == "paused"
    assert supervisor.deaths == 3 * MAX_LOSSES
