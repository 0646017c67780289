"""Slots: who gets one, who keeps one, and that none is lost whoever is cancelled when."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass, field

import pytest

from marlaas.engine.fairness.line import Line, Payer
from marlaas.engine.rollout.slots import ENOUGH, SamplerSlots

ANN, BOB = Payer("ann", 1), Payer("bob", 2)


@dataclass(eq=False)
class Visitor:
    """An episode that notes when its memory is taken away."""

    payer: Payer
    unseated: list[str] = field(default_factory=list)

    def unseat(self) -> None:
        self.unseated.append("lost")


@dataclass
class Room:
    """Slots, with the order in which those who waited sat down."""

    count: int
    patience: float = 0.0
    weights: dict[str, float] = field(default_factory=dict)
    order: list[Visitor] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = SamplerSlots(self.count, Line(lambda tenant: self.weights.get(tenant, 1.0)), self.patience)

    async def sit(self, visitor: Visitor) -> None:
        await self.slots.take(visitor)
        self.order.append(visitor)

    async def queue(self, *visitors: Visitor) -> list[asyncio.Task[None]]:
        """Let them wait, one after the other."""
        tasks = []
        for visitor in visitors:
            tasks.append(asyncio.ensure_future(self.sit(visitor)))
            await asyncio.sleep(0)
        return tasks


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_burst_of_a_tenant_does_not_get_all_free_slots() -> None:
    room = Room(4)
    first = [Visitor(ANN) for _ in range(4)]
    await room.queue(*first)
    await room.queue(*(Visitor(ANN) for _ in range(8)), *(Visitor(BOB) for _ in range(4)))
    for visitor in first:  # all of them in one turn of the loop
        room.slots.rest(visitor, 10)
        room.slots.leave(visitor)
    await settle()
    assert [visitor.payer.tenant for visitor in room.order[4:]].count("bob") >= 2


async def test_shares_of_turns_follow_weights() -> None:
    room = Room(3, weights={"bob": 3.0})
    served = {"ann": 0, "bob": 0}

    async def talk(payer: Payer, cost: int) -> None:
        while sum(served.values()) < 4000:
            visitor = Visitor(payer)
            await room.slots.take(visitor)
            await asyncio.sleep(0)
            room.slots.rest(visitor, cost)
            served[payer.tenant] += cost
            room.slots.leave(visitor)

    await asyncio.gather(*(talk(ANN, 7) for _ in range(30)), *(talk(BOB, 4) for _ in range(10)))
    assert served["bob"] / sum(served.values()) == pytest.approx(0.75, rel=0.05)


@pytest.mark.parametrize(("turns", "pause"), [(20, 5), (20, 0), (20, 40), (4, 100)])
async def test_long_conversations_leave_others_their_share(turns: int, pause: int) -> None:
    """Many conversations of a tenant, with tools that take their time, beside few and quick ones at equal weight."""
    room, device = Room(16), asyncio.Semaphore(2)
    chance, served = random.Random(0), list[str]()

    async def episodes(payer: Payer, turns: int, pause: int) -> None:
        while len(served) < 5000:
            visitor = Visitor(payer)
            for _ in range(turns):
                await room.slots.take(visitor)
                async with device:
                    await asyncio.sleep(0)
                room.slots.rest(visitor, 1)
                served.append(payer.tenant)
                for _ in range(chance.randint(0, 2 * pause)):
                    await asyncio.sleep(0)
            room.slots.leave(visitor)

    large = (episodes(ANN, turns, pause) for _ in range(100))
    await asyncio.gather(*large, *(episodes(BOB, 1, 0) for _ in range(20)))
    assert served[1000:5000].count("bob") / 4000 == pytest.approx(0.5, rel=0.1)


async def test_a_guest_keeps_its_seat_while_nobody_needs_it() -> None:
    room = Room(2)
    slow, other = Visitor(ANN), Visitor(BOB)
    await room.sit(slow)
    room.slots.rest(slow, 1)
    await room.sit(other)
    await room.sit(slow)
    assert slow.unseated == []
    room.slots.rest(slow, 1)
    room.slots.rest(other, 1)
    await room.sit(Visitor(BOB))
    assert slow.unseated == ["lost"]


async def test_idle_slots_stay_while_the_sampler_is_busy() -> None:
    room = Room(2 * ENOUGH)
    frozen_policies = [Visitor(ANN) for _ in range(2 * ENOUGH)]
    for guest in frozen_policies:
        await room.sit(guest)
    waiting = await room.queue(Visitor(BOB), Visitor(BOB))
    for guest in frozen_policies[2:]:
        room.slots.rest(guest, 1)
    await settle()
    assert room.slots.active == 2 and not any(task.done() for task in waiting)
    room.slots.rest(frozen_policies[0], 1)
    await settle()
    assert [task.done() for task in waiting] == [True, False]
    assert [bool(guest.unseated) for guest in frozen_policies].count(True) == 1


async def test_whoever_has_been_idle_longest_loses_its_seat() -> None:
    room = Room(2)
    frozen_policies = [Visitor(ANN), Visitor(ANN)]
    for guest in frozen_policies:
        await room.sit(guest)
    for guest in reversed(frozen_policies):
        room.slots.rest(guest, 1)
    await room.sit(Visitor(BOB))
    assert [guest.unseated for guest in frozen_policies] == [[], ["lost"]]


async def test_an_idle_seat_is_kept_for_a_moment() -> None:
    room = Room(1, patience=1e-3)
    quick = Visitor(ANN)
    await room.sit(quick)
    (waiting,) = await room.queue(Visitor(BOB))
    room.slots.rest(quick, 1)
    await room.sit(quick)  # its environment answered at once
    assert quick.unseated == [] and not waiting.done()
    room.slots.rest(quick, 1)
    await waiting
    assert quick.unseated == ["lost"]


async def test_an_episode_ending_in_a_turn_frees_its_slot() -> None:
    room = Room(1)
    guest = Visitor(ANN)
    await room.sit(guest)
    room.slots.leave(guest)
    room.slots.rest(guest, None)  # its turn ends later, and is nobody's
    room.slots.leave(guest)
    await room.sit(Visitor(BOB))
    assert (room.slots.active, room.slots.waiting, guest.unseated) == (1, 0, ["lost"])


async def test_a_slot_given_to_a_cancelled_waiter_is_passed_on() -> None:
    room = Room(1)
    guest = Visitor(ANN)
    await room.sit(guest)
    gone, waiting = await room.queue(Visitor(BOB), Visitor(ANN))
    room.slots.leave(guest)  # grants it to the first
    gone.cancel()
    await waiting
    assert gone.cancelled()


async def test_a_cancelled_waiter_is_passed_over() -> None:
    room = Room(1)
    guest = Visitor(ANN)
    await room.sit(guest)
    gone, waiting = await room.queue(Visitor(BOB), Visitor(ANN))
    gone.cancel()
    room.slots.leave(guest)
    await waiting
    assert gone.cancelled()


@pytest.mark.parametrize("seed", range(20))
async def test_no_slot_is_lost_or_given_twice(seed: int) -> None:
    chance, room = random.Random(seed), Room(3)
    seated: set[Visitor] = set()

    async def pause() -> None:
        for _ in range(chance.randint(0, 3)):
            await asyncio.sleep(0)

    async def episode(visitor: Visitor) -> None:
        try:
            for _ in range(chance.randint(1, 3)):
                await room.slots.take(visitor)
                seated.add(visitor)
                try:
                    assert len(seated) <= 3
                    await pause()
                finally:
                    seated.discard(visitor)
                    room.slots.rest(visitor, chance.choice([None, 1, 9]))
                await pause()
        finally:
            room.slots.leave(visitor)

    payers = [Payer(f"tenant {n % 3}", n, n % 2) for n in range(6)]
    tasks = [asyncio.ensure_future(episode(Visitor(chance.choice(payers)))) for _ in range(60)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        if chance.random() < 0.5:
            chance.choice(tasks).cancel()
    failures = [task.exception() for task in tasks if not task.cancelled()]
    assert failures == [None] * len(failures)
    assert (room.slots.active, room.slots.waiting) == (0, 0)
    for _ in range(3):
        await asyncio.wait_for(room.sit(Visitor(ANN)), 1)
    assert room.slots.active == 3
