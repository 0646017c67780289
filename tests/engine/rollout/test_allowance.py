"""Turns of one agent that are taken at the same time get what they would get one after another."""

from __future__ import annotations

import asyncio

from hypothesis import given, strategies as st

from marlaas.engine.rollout.conversation import Allowance

Turn = tuple[int, int, int]
"""Tokens that it wants, tokens that it leaves of what it gets, rounds of the event loop that it takes."""
turns = st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 6)), max_size=8)


def one_after_another(limit: int, turns: list[Turn]) -> list[int]:
    granted = []
    for wanted, spared, _ in turns:
        granted.append(min(wanted, limit))
        limit -= max(0, granted[-1] - spared)
    return granted


@given(st.integers(0, 30), turns)
def test_what_is_granted_depends_on_the_order_alone(limit: int, turns: list[Turn]) -> None:
    async def granted() -> list[int]:
        allowance, under_way = Allowance(limit), 0

        async def take(wanted: int, spared: int, rounds: int) -> int:
            nonlocal under_way
            async with allowance.turn(wanted) as turn:
                under_way += turn.granted
                assert under_way <= limit
                for _ in range(rounds):
                    await asyncio.sleep(0)
                turn.used = max(0, turn.granted - spared)
                under_way -= turn.granted - turn.used
                return turn.granted

        return list(await asyncio.wait_for(asyncio.gather(*(take(*turn) for turn in turns)), 50))

    assert asyncio.run(granted()) == one_after_another(limit, turns)


async def test_a_turn_that_fails_has_used_nothing() -> None:
    allowance = Allowance(5)

    async def take(fails: bool) -> int:
        async with allowance.turn(4) as turn:
            await asyncio.sleep(0)
            if fails:
                raise RuntimeError("no sampler")
            return turn.granted

    assert (await asyncio.gather(take(True), take(False), return_exceptions=True))[1] == 4


async def test_whoever_gives_up_waiting_holds_nobody_up() -> None:
    allowance, go = Allowance(5), asyncio.Event()

    async def take() -> int:
        async with allowance.turn(4) as turn:
            await go.wait()
            turn.used = 2
            return turn.granted

    first, second, third = (asyncio.ensure_future(take()) for _ in range(3))
    await asyncio.sleep(0)
    second.cancel()
    go.set()
    assert (await first, await third, second.cancelled()) == (4, 3, True)
