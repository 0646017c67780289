"""Every episode has the global generators for itself, however episodes take turns."""

from __future__ import annotations

import asyncio
import random

import numpy as np
import pytest

from marlaas.plugins.adapters.declaring import OwnRandom, own_random, swapped
from marlaas.plugins.episode import Episode

from .playing import Model


@own_random
async def dice(ep: Episode, throws: int = 5) -> tuple[list[int], list[int]]:
    """A game that uses both global generators, and lets others go on between its throws."""
    thrown, drawn = [], []
    for _ in range(throws):
        thrown.append(random.randint(1, 1000))
        drawn.append(int(np.random.randint(1000)))
        await asyncio.sleep(0)
    return thrown, drawn


async def games(number: int) -> list[tuple[list[int], list[int]]]:
    model = Model([])
    return await asyncio.gather(*(dice(Episode(model, index=index)) for index in range(number)))


async def test_twelve_at_once_are_twelve_one_by_one() -> None:
    model = Model([])
    one_by_one = [await dice(Episode(model, index=index)) for index in range(12)]
    assert await games(12) == one_by_one
    assert len({str(game) for game in one_by_one}) == 12


async def test_members_of_a_group_meet_the_same_instance() -> None:
    model = Model([])
    assert await dice(Episode(model, member=0)) == await dice(Episode(model, member=7))


async def test_nobody_else_notices() -> None:
    random.seed(1)
    np.random.seed(1)
    before = random.getstate(), np.random.get_state()[1].tolist()  # type: ignore[index]
    await games(3)
    assert before == (random.getstate(), np.random.get_state()[1].tolist())  # type: ignore[index]


async def test_a_cancellation_reaches_the_episode_with_its_own_state() -> None:
    seen: list[float] = []

    async def waits() -> None:
        random.seed(5)
        try:
            await asyncio.Future()
        finally:
            seen.append(random.random())

    task = asyncio.ensure_future(_run(waits()))
    await asyncio.sleep(0)
    random.seed(99)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert seen == [random.Random(5).random()]


async def test_what_it_raises_is_raised() -> None:
    async def fails() -> None:
        raise LookupError("here")

    before = random.getstate()
    with pytest.raises(LookupError, match="here"):
        await swapped(fails(), OwnRandom(1))
    assert random.getstate() == before


async def _run(coroutine: object) -> None:
    await swapped(coroutine, OwnRandom(1))  # type: ignore[arg-type]
