"""Work is broken off wherever it stands, begins anew when it is wanted, and says what went wrong."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.machine.supervisor import Preemptible
from marlaas.engine.store.rows import IDLE, YIELDED, Yielding


class Work:
    """Counts how often it has begun and ended."""

    def __init__(self) -> None:
        self.begun = self.ended = 0

    async def __call__(self) -> None:
        self.begun += 1
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)  # what it does at its end takes its time
            self.ended += 1


async def test_it_is_broken_off_and_begins_again_when_it_is_wanted() -> None:
    preemptible, work = Preemptible(), Work()
    first = asyncio.ensure_future(preemptible.during(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert work.begun == 1
    preemptible.begin(Yielding(IDLE))
    await preemptible.begun()
    assert work.ended == 1
    await first
    await preemptible.during(work())
    assert work.begun == 1, "it began although nobody wants it"
    preemptible.end()
    assert preemptible.yielding is None
    await preemptible.wanted()
    second = asyncio.ensure_future(preemptible.during(work()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    second.cancel()
    with pytest.raises(asyncio.CancelledError):
        await second
    assert work.begun == work.ended == 2


async def test_yielding_that_people_want_is_ended_by_nobody_else() -> None:
    preemptible = Preemptible()
    preemptible.begin(Yielding(YIELDED))
    preemptible.end()
    assert preemptible.yielding == Yielding(YIELDED)
    preemptible.begin(Yielding(IDLE))
    preemptible.end()
    assert preemptible.yielding is None


async def test_what_goes_wrong_is_said() -> None:
    async def fails() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        await Preemptible().during(fails())
