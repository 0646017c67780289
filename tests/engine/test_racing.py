"""Whoever ends first ends the others."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.racing import until_first


async def ends_at_once() -> None:
    """Nothing to do."""


async def fails() -> None:
    raise LookupError("lost")


class Endless:
    """Runs until it is cancelled, and takes a turn of the loop to end."""

    ended = False

    async def run(self) -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0)
            self.ended = True


async def test_the_others_have_ended_when_it_returns() -> None:
    slow = Endless()
    assert await until_first(slow.run(), ends_at_once()) == {1}
    assert slow.ended


async def test_all_that_ended_in_the_same_moment_are_named() -> None:
    assert await until_first(ends_at_once(), asyncio.sleep(0), Endless().run(), ends_at_once()) >= {0, 3}


async def test_what_ended_it_is_raised_after_the_others_have_ended() -> None:
    slow = Endless()
    with pytest.raises(LookupError, match="lost"):
        await until_first(slow.run(), fails())
    assert slow.ended


async def test_what_a_loser_raises_while_it_is_cancelled_is_nobodys() -> None:
    async def loses() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            raise LookupError("too late")

    assert await until_first(loses(), ends_at_once()) == {1}


async def test_cancelling_ends_all() -> None:
    first, second = Endless(), Endless()
    race = asyncio.ensure_future(until_first(first.run(), second.run()))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    race.cancel()
    with pytest.raises(asyncio.CancelledError):
        await race
    assert first.ended and second.ended
