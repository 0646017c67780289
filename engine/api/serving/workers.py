"""The workers that answer clients: there, about to be, or not while the engine yields the machine."""

from __future__ import annotations

import asyncio
import time
from typing import Protocol

from ...gateway import Refusal
from ...store import Yielding
from .loaded import Machine

PATIENCE = 20.0
"""Seconds for which a request waits for workers that start."""
SOON = 5.0
"""Seconds after which workers may be there that start, or start again."""
LONGEST = 3600.0
"""Most seconds after which a client is told to try again."""


class Workers(Protocol):
    """What is needed of ``fleet.WorkerSupervisor``."""

    @property
    def yielding(self) -> Yielding | None:
        """Why there are no workers; None while there are, or they start."""

    @property
    def ready(self) -> bool:
        """Whether the workers live, as far as is known."""

    async def services(self) -> Machine:
        """The live workers, waiting for them if need be."""

    def wake(self) -> None:
        """Start workers that ended because nothing ran."""


async def machine_of(workers: Workers, patience: float) -> Machine:
    """The workers. Raises ``Refusal`` while the engine yields the machine, and where they are not there in time."""
    yielding = workers.yielding
    if yielding is not None and yielding.holds:
        left = SOON if yielding.until is None else yielding.until - time.time()
        message = "The engine has given the machine back to people, and has no workers until they are done."
        raise Refusal(503, "engine_yields", message, retry_after=min(max(1.0, left), LONGEST))
    if yielding is not None:
        workers.wake()
    try:
        async with asyncio.timeout(patience):
            return await workers.services()
    except TimeoutError:
        raise Refusal(503, "engine_starting", "The engine's workers are starting.", retry_after=SOON) from None


def lost() -> Refusal:
    """What a client hears whose answer was lost with the workers."""
    return Refusal(503, "workers_lost", "The engine's workers have ended; others take their place.", retry_after=SOON)
