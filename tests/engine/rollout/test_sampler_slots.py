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
class Holder:
    """An episode that notes when its memory is taken away."""

    payer: Payer
    lost: list[str] = field(default_factory=list)

    def lose_slot(self) -> None:
        self.lost.append("slot")


@dataclass
class Stage:
    """Slots, with the order in which holders got them."""

    count: int
    patience: float = 0.0
    weights: dict[str, float] = field(default_factory=dict)
    order: list[Holder] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.slots = SamplerSlots(self.count, Line(lambda tenant: self.weights.get(tenant, 1.0)), self.patience)

    async def take(self, holder: Holder) -> None:
        await self.slots.take(holder)
        self.order.append(holder)

    async def queue(self, *holders: Holder) -> list[asyncio.Task[None]]:
        """Let them wait, one after the other."""
        tasks = []
        for holder in holders:
            tasks.append(asyncio.ensure_future(self.take(holder)))
            await asyncio.sleep(0)
        return tasks


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


async def test_a_burst_of_a_tenant_does_not_get_all_free_slots() -> None:
    stage = Stage(4)
    first = [Holder(ANN) for _ in range(4)]
    await stage.queue(*first)
    await stage.queue(*(Holder(ANN) for _ in range(8)), *(Holder(BOB) for _ in range(4)))
    for holder in first:  # all of them in one turn of the loop
        stage.slots.rest(holder, 10)
        stage.slots.leave(holder)
    await settle()
    assert [holder.payer.tenant for holder in stage.order[4:]].count("bob") >= 2


async def test_a_turn_given_up_is_charged_once_its_cost_is_known() -> None:
    stage = Stage(1)
    ann, bob = Holder(ANN), Holder(BOB)
    await stage.queue(ann, bob)
    reservation = stage.slots.abandon(ann)
    await settle()
    assert reservation is not None and ann.lost == ["slot"] and stage.order == [ann, bob], "the slot is free at once"
    assert stage.slots.abandon(ann) is None
    stage.slots.line.end(reservation, 50)
    await stage.queue(Holder(ANN), Holder(BOB))
    behind = {standing.tenant: standing.behind for standing in stage.slots.line.standings()}
    assert behind == {"ann": 0.0, "bob": 49.0}  # bob's own turn is under way, for which 1 is reserved


async def test_shares_of_turns_follow_weights() -> None:
    stage = Stage(3, weights={"bob": 3.0})
    served = {"ann": 0, "bob": 0}

    async def talk(payer: Payer, cost: int) -> None:
        while sum(served.values()) < 4000:
            holder = Holder(payer)
            await stage.slots.take(holder)
            await asyncio.sleep(0)
            stage.slots.rest(holder, cost)
            served[payer.tenant] += cost
            stage.slots.leave(holder)

    await asyncio.gather(*(talk(ANN, 7) for _ in range(30)), *(talk(BOB, 4) for _ in range(10)))
    assert served["bob"] / sum(served.values()) == pytest.approx(0.75, rel=0.05)


@pytest.mark.parametrize(("turns", "pause"), [(20, 5), (20, 0), (20, 40), (4, 100)])
async def test_long_conversations_leave_others_their_share(turns: int, pause: int) -> None:
    """Many conversations of a tenant, with tools that take their time, beside few and quick ones at equal weight."""
    stage, device = Stage(16), asyncio.Semaphore(2)
    chance, served = random.Random(0), list[str]()

    async def episodes(payer: Payer, turns: int, pause: int) -> None:
        while len(served) < 5000:
            holder = Holder(payer)
            for _ in range(turns):
                await stage.slots.take(holder)
                async with device:
                    await asyncio.sleep(0)
                stage.slots.rest(holder, 1)
                served.append(payer.tenant)
                for _ in range(chance.randint(0, 2 * pause)):
                    await asyncio.sleep(0)
            stage.slots.leave(holder)

    large = (episodes(ANN, turns, pause) for _ in range(100))
    await asyncio.gather(*large, *(episodes(BOB, 1, 0) for _ in range(20)))
    assert served[1000:5000].count("bob") / 4000 == pytest.approx(0.5, rel=0.1)


async def test_a_holder_keeps_its_slot_while_nobody_needs_it() -> None:
    stage = Stage(2)
    slow, other = Holder(ANN), Holder(BOB)
    await stage.take(slow)
    stage.slots.rest(slow, 1)
    await stage.take(other)
    await stage.take(slow)
    assert slow.lost == []
    stage.slots.rest(slow, 1)
    stage.slots.rest(other, 1)
    await stage.take(Holder(BOB))
    assert slow.lost == ["slot"]


async def test_idle_slots_stay_while_the_sampler_is_busy() -> None:
    stage = Stage(2 * ENOUGH)
    holders = [Holder(ANN) for _ in range(2 * ENOUGH)]
    for holder in holders:
        await stage.take(holder)
    waiting = await stage.queue(Holder(BOB), Holder(BOB))
    for holder in holders[2:]:
        stage.slots.rest(holder, 1)
    await settle()
    assert stage.slots.active == 2 and not any(task.done() for task in waiting)
    stage.slots.rest(holders[0], 1)
    await settle()
    assert [task.done() for task in waiting] == [True, False]
    assert [bool(holder.lost) for holder in holders].count(True) == 1


async def test_whoever_has_been_idle_longest_loses_its_slot() -> None:
    stage = Stage(2)
    holders = [Holder(ANN), Holder(ANN)]
    for holder in holders:
        await stage.take(holder)
    for holder in reversed(holders):
        stage.slots.rest(holder, 1)
    await stage.take(Holder(BOB))
    assert [holder.lost for holder in holders] == [[], ["slot"]]


async def test_an_idle_slot_is_kept_for_a_moment() -> None:
    stage = Stage(1, patience=1e-3)
    quick = Holder(ANN)
    await stage.take(quick)
    (waiting,) = await stage.queue(Holder(BOB))
    stage.slots.rest(quick, 1)
    await stage.take(quick)  # its environment answered at once
    assert quick.lost == [] and not waiting.done()
    stage.slots.rest(quick, 1)
    await waiting
    assert quick.lost == ["slot"]


async def test_an_episode_ending_in_a_turn_frees_its_slot() -> None:
    stage = Stage(1)
    holder = Holder(ANN)
    await stage.take(holder)
    stage.slots.leave(holder)
    stage.slots.rest(holder, None)  # its turn ends later, and is nobody's
    stage.slots.leave(holder)
    await stage.take(Holder(BOB))
    assert (stage.slots.active, stage.slots.waiting, holder.lost) == (1, 0, ["slot"])


async def test_a_slot_given_to_a_cancelled_waiter_is_passed_on() -> None:
    stage = Stage(1)
    holder = Holder(ANN)
    await stage.take(holder)
    gone, waiting = await stage.queue(Holder(BOB), Holder(ANN))
    stage.slots.leave(holder)  # grants it to the first
    gone.cancel()
    await waiting
    assert gone.cancelled()


async def test_a_cancelled_waiter_is_passed_over() -> None:
    stage = Stage(1)
    holder = Holder(ANN)
    await stage.take(holder)
    gone, waiting = await stage.queue(Holder(BOB), Holder(ANN))
    gone.cancel()
    stage.slots.leave(holder)
    await waiting
    assert gone.cancelled()


@pytest.mark.parametrize("seed", range(20))
async def test_no_slot_is_lost_or_given_twice(seed: int) -> None:
    chance, stage = random.Random(seed), Stage(3)
    holding: set[Holder] = set()

    async def pause() -> None:
        for _ in range(chance.randint(0, 3)):
            await asyncio.sleep(0)

    async def episode(holder: Holder) -> None:
        try:
            for _ in range(chance.randint(1, 3)):
                await stage.slots.take(holder)
                holding.add(holder)
                try:
                    assert len(holding) <= 3
                    await pause()
                finally:
                    holding.discard(holder)
                    stage.slots.rest(holder, chance.choice([None, 1, 9]))
                await pause()
        finally:
            stage.slots.leave(holder)

    payers = [Payer(f"tenant {n % 3}", n, n % 2) for n in range(6)]
    tasks = [asyncio.ensure_future(episode(Holder(chance.choice(payers)))) for _ in range(60)]
    while not all(task.done() for task in tasks):
        await asyncio.sleep(0)
        if chance.random() < 0.5:
            chance.choice(tasks).cancel()
    failures = [task.exception() for task in tasks if not task.cancelled()]
    assert failures == [None] * len(failures)
    assert (stage.slots.active, stage.slots.waiting) == (0, 0)
    for _ in range(3):
        await asyncio.wait_for(stage.take(Holder(ANN)), 1)
    assert stage.slots.active == 3
