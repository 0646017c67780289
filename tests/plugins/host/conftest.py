"""The watching thread's work, done by a task: episodes of tests end when their time is up."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from time import monotonic

import pytest

from marlaas.plugins.host.meter import Watchdog


@pytest.fixture
async def watched() -> AsyncIterator[Watchdog]:
    """Ticks every few milliseconds."""
    ours, theirs = socket.socketpair()
    watchdog = Watchdog(ours, lambda frame: None)

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.005)
            watchdog.tick(monotonic())

    ticking = asyncio.create_task(tick())
    yield watchdog
    ticking.cancel()
    ours.close()
    theirs.close()
