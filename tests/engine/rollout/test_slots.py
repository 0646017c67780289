"""Slots and the choice of a sampler: who gets one, who keeps one, and that none is lost whoever is cancelled."""

from __future__ import annotations

import asyncio
import random
from contextlib import ExitStack
from dataclasses import dataclass, field

import numpy as np
import pytest

from marlaas.engine.errors import WorkerDied
from marlaas.engine.fairness.line import Ledger, Line, Payer
from marlaas.engine.rollout import slots as module
from marlaas.engine.rollout.sampler_client import SamplerClient
from marlaas.engine.rollout.slots import ENOUGH, Backpressure, Replicas, SamplerEndpoint, SamplerSlots
from marlaas.engine.samplers.protocol import OnTokens, SampleRequest, SampleResult
from marlaas.engine.trajectories import Tokens

from ...seldom import seldom
from .endpoints import endpoint
from .fake import FakeSampler, FakeVersion

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
    """Slots with a line of their own."""

    count: int
    patience: float = 0.0

    def __post_init__(self) -> None:
        self.slots = SamplerSlots(self.count, Line(), self.patience)

    async def queue(self, *holders: Holder) -> list[asyncio.Task[None]]:
        """Let them wait, one after the other."""
        tasks = []
        for holder in holders:
            tasks.append(asyncio.ensure_future(self.slots.take(holder)))
            await asyncio.sleep(0)
        return tasks


async def settle() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


@pytest.mark.parametrize(("turns", "pause"), [(20, 5), seldom(4, 100)])
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


async def test_idle_slots_stay_while_the_sampler_is_busy() -> None:
    stage = Stage(2 * ENOUGH)
    holders = [Holder(ANN) for _ in range(2 * ENOUGH)]
    for holder in holders:
        await stage.slots.take(holder)
    waiting = await stage.queue(Holder(BOB), Holder(BOB))
    for holder in holders[2:]:
        stage.slots.rest(holder, 1)
    await settle()
    assert stage.slots.active == 2 and not any(task.done() for task in waiting)
    stage.slots.rest(holders[0], 1)
    await settle()
    assert [task.done() for task in waiting] == [True, False]
    assert [bool(holder.lost) for holder in holders].count(True) == 1


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
        await asyncio.wait_for(stage.slots.take(Holder(ANN)), 1)
    assert stage.slots.active == 3


@pytest.fixture
def _never(monkeypatch: pytest.MonkeyPatch) -> None:
    """What has begun is on its way until a test says that it has arrived."""
    monkeypatch.setattr(module, "COMING", 1e6)


async def found(backpressure: Backpressure, payer: Payer, stage: Stage, least: int) -> asyncio.Task[None]:
    task = asyncio.ensure_future(backpressure.room(payer, [stage.slots], least))
    await settle()
    return task


@pytest.mark.usefixtures("_never")
async def test_what_has_just_begun_counts_as_waiting() -> None:
    stage, backpressure = Stage(4), Backpressure()
    backpressure.begin(ANN, 4)
    bob, ann = await found(backpressure, BOB, stage, 1), await found(backpressure, ANN, stage, 4)
    assert bob.done() and not ann.done()
    backpressure.asked(ANN)
    backpressure.look(ANN)
    await settle()
    assert ann.done()
    for _ in range(3):
        backpressure.asked(ANN)
    await stage.queue(*(Holder(ANN) for _ in range(7)))
    room = await found(backpressure, BOB, stage, 0)
    assert room.done(), "three wait for four slots: who has asked counts only where its turn waits"


@pytest.mark.usefixtures("_never")
async def test_whoever_waits_for_room_hears_of_it() -> None:
    stage, backpressure = Stage(1), Backpressure()
    holders = [Holder(ANN), Holder(BOB), Holder(ANN), Holder(ANN), Holder(BOB)]
    turns = await stage.queue(*holders)
    ann, bob = await found(backpressure, ANN, stage, 2), await found(backpressure, BOB, stage, 1)
    stage.slots.rest(holders[0], 1)
    stage.slots.leave(holders[0])
    await settle()
    assert not ann.done() and not bob.done(), "bob's turn has begun, and another of his waits"
    turns[4].cancel()
    await settle()
    assert bob.done() and not ann.done(), "a turn that is given up makes room, too"
    for holder in holders[1:4]:
        stage.slots.rest(holder, 1)
        stage.slots.leave(holder)
    await settle()
    assert ann.done()


def pair(read: float = 1.0, written: float = 1.0) -> tuple[SamplerEndpoint, SamplerEndpoint]:
    """Two samplers of these costs."""
    first, second = (endpoint(FakeSampler(), 4, length, f"s{length}") for length in (64, 48))
    for one in (first, second):
        one.backlog.read, one.backlog.written = read, written
    return first, second


def context(count: int) -> Tokens:
    return np.arange(count, dtype=np.int32)


def test_members_stay_together_where_their_prompt_is_long() -> None:
    """The first at a sampler pays for reading the prompt; the others copy it."""
    for prompt, at_second in ((30, 0), (10, 2), (1, 4)):
        first, second = pair()
        replicas, went = Replicas([first, second]), []
        with ExitStack() as under_way:
            for _ in range(8):
                place, unread = replicas.choose(context(prompt), 2)
                under_way.enter_context(place.backlog.turn(unread, 2))
                replicas.begin(place, context(prompt).tobytes())
                went.append((place, unread))
        assert sum(place is second for place, _ in went) == at_second
        assert sum(unread for _, unread in went) == prompt * len({place.name for place, _ in went})


def test_a_turn_moves_once_waiting_costs_more_than_reading() -> None:
    first, second = pair()
    replicas = Replicas([first, second])
    for waiting, chosen in ((39, (first, 4)), (41, (second, 24))):  # 45 or 47 seconds here; 26 there, and 20 lost
        with first.backlog.turn(waiting, 0):
            assert replicas.choose(context(24), 2, first, held=20) == chosen


class Mortal(FakeSampler):
    """Dies when it is told to, in the middle of a turn."""

    dies = False

    async def generate(self, request: SampleRequest, *, stream_to: OnTokens | None = None) -> SampleResult:
        result = await super().generate(request, stream_to=stream_to)
        if self.dies:
            raise WorkerDied("The sampler died.")
        return result


class Pair:
    """Two samplers that serve one version; prompts and replies cost a second a token."""

    def __init__(self, anew: bool = False) -> None:
        self.samplers = [Mortal(versions={"v1": FakeVersion("sum")}) for _ in range(2)]
        self.endpoints = [endpoint(one, 2, 2048, f"s{n}") for n, one in enumerate(self.samplers)]
        for one in self.endpoints:
            one.backlog.read = one.backlog.written = 1.0
        self.ledger = Ledger()
        self.client = SamplerClient(Replicas(self.endpoints), self.ledger, Payer("lab", 1), anew)
        self.tokens: Tokens = np.arange(10, dtype=np.int32)

    async def turn(self) -> None:
        """The next turn: two more tokens are given, and four sampled."""
        self.tokens = np.concatenate([self.tokens, np.array([1, 2], np.int32)])
        request = SampleRequest("c", "v1", self.tokens, 4, 1.0, (), 7)
        result = await self.client.generate(request)
        self.tokens = np.concatenate([self.tokens, result.tokens])
        await asyncio.sleep(0)  # what is to be forgotten goes with the next turn of the event loop
        await asyncio.sleep(0)

    @property
    def held(self) -> list[int]:
        return [len(one.conversations) for one in self.samplers]


async def test_a_turn_moves_to_an_idle_sampler_and_says_the_same() -> None:
    alone, moved = Pair(), Pair()
    for waiting in (0, 0, 1000, 1000, 0):
        await alone.turn()
        with moved.endpoints[0].backlog.turn(waiting, 0):
            await moved.turn()
    assert [len(one.ledger) for one in alone.samplers] == [5, 0]
    assert [len(one.ledger) for one in moved.samplers] == [2, 3], "it does not come back without need"
    assert alone.tokens.tolist() == moved.tokens.tolist()
    assert (alone.held, moved.held) == ([1, 0], [0, 1])
    assert [one.slots.active for one in moved.endpoints] == [0, 0]


async def test_a_turn_whose_sampler_dies_is_said_at_the_other() -> None:
    alone, moved = Pair(), Pair()
    for turn in range(4):
        moved.samplers[0].dies = turn == 2
        await alone.turn()
        await moved.turn()
    assert alone.tokens.tolist() == moved.tokens.tolist()
    assert [len(one.ledger) for one in moved.samplers] == [3, 2] and moved.endpoints[0].lost
    assert moved.held[1] == 1 and [one.slots.active for one in moved.endpoints] == [0, 0]
    assert [one.backlog.seconds for one in moved.endpoints] == [0.0, 0.0]
    moved.samplers[1].dies = True
    with pytest.raises(WorkerDied):
        await moved.turn()


async def test_who_heard_a_part_is_told_of_the_death() -> None:
    """Another sampler may go on in other words."""
    pair = Pair()
    pair.samplers[0].dies = True
    request = SampleRequest("c", "v1", pair.tokens, 4, 1.0, (), 7)
    with pytest.raises(WorkerDied):
        await pair.client.generate(request, stream_to=lambda new: None)
    assert pair.endpoints[0].lost and not pair.endpoints[1].lost
    assert (await pair.client.generate(request)).tokens.size == 4


async def test_what_must_repeat_itself_stays_and_dies_with_its_sampler() -> None:
    pair = Pair(anew=True)
    for _ in range(3):
        with pair.endpoints[0].backlog.turn(10_000, 0):
            await pair.turn()
    assert [len(sampler.ledger) for sampler in pair.samplers] == [3, 0]
    pair.samplers[0].dies = True
    with pytest.raises(WorkerDied):
        await pair.turn()
    assert not pair.samplers[1].ledger
