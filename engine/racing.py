"""Waits for the first of several awaitables."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Any


async def until_first(*works: Awaitable[Any]) -> set[int]:
    """Run all until one ends, then cancel the others and wait for their end.

    Returns the positions of those that ended by themselves. Raises what the first of these raised.
    """
    running = [asyncio.ensure_future(work) for work in works]
    try:
        ended, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for work in running:
            work.cancel()
        await asyncio.gather(*running, return_exceptions=True)
    first = [place for place, work in enumerate(running) if work in ended]
    for place in first:
        running[place].result()
    return set(first)
