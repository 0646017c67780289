"""Which process plays an episode, who waits for a place, and what a death takes along. Processes are fakes."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass, field
from typing import cast

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments import pool as pools
from marlaas.engine.environments.health import Health
from marlaas.engine.environments.pool import (
    FULL,
    GROW_AFTER,
    REST,
    ProcessBudget,
    ProcessPool,
    processes_needed,
)
from marlaas.engine.environments.process.child import BrokenPlugin, Child, Owner
from marlaas.engine.environments.process.launch import Workers
from marlaas.engine.environments.served_version import ServedVersion
from marlaas.engine.trajectories import Failure

USUAL = Workers(1, 4)


@dataclass(eq=False)
class FakeChild:
    """A process that lives until it is killed."""

    pid: int
    owner: Owner
    dead: Failure | None = None
    full: bool = False
    live: int = 0
    leaving: bool = False
    busy: float = 0.0
    idle: bool = True

    gone: bool = False

    def kill(self, reason: str, cut: bool = False) -> None:
        self.dead = Failure(reason)

    async def wait(self) -> None:
        self.gone = True

    def die(self) -> None:
        self.dead = Failure("killed")
        self.owner.died(cast(Child, self), self.dead)


@dataclass
class Version:
    """The version that a pool belongs to."""

    health: Health = field(default_factory=lambda: Health(lambda: 0.0))
    needed: bool = True
    buried: list[int] = field(default_factory=list)
    """How many others were left at each death."""

    def started(self) -> None: ...

    def bury(self, pool: ProcessPool, failure: Failure, others: int) -> None:
        if not pool.scores:
            self.health.died(failure, others + 1)
        self.buried.append(others)

    def stop_if_done(self) -> None: ...


class Made:
    """A pool of fakes."""

    def __init__(
        self,
        workers: Workers | None = USUAL,
        episodes: int = 4,
        cores: int = 8,
        budget: ProcessBudget | None = None,
        scores: bool = False,
    ) -> None:
        self.children: list[FakeChild] = []
        self.broken: BrokenPlugin | None = None
        self.may_start = asyncio.Event()
        self.may_start.set()
        self.version, self.budget = Version(), budget or ProcessBudget(cores)
        self.pool = ProcessPool(
            cast(ServedVersion, self.version), self._start, self.budget, workers, episodes, scores=scores
        )

    async def _start(self, owner: Owner) -> Child:
        await asyncio.sleep(0)
        await self.may_start.wait()
        if self.broken is not None:
            raise self.broken
        self.children.append(FakeChild(len(self.children), owner))
        return cast(Child, self.children[-1])

    async def place(self) -> Child:
        return self.pool.take() or await self.pool.wait()

    async def places(self, count: int) -> list[Child]:
        return [await self.place() for _ in range(count)]

    def press(self, busy: float = 1.0) -> None:
        for child in self.children:
            child.busy = busy


async def settled() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


@pytest.mark.parametrize(
    ("busy", "live", "waiting", "needed"),
    [
        (1.0, 64, 0, 2),  # a grader that computes, or holds the loop
        (0.3, 64, 0, 1),  # an environment that mostly waits for the model
        (1.0, 1, 0, 1),  # a second process would have nothing to run
        (0.4, 64, 0, 1),
        (0.4, 64, 65, 3),  # no place for the last
        (1.0, 64, 64, 3),  # those that wait will take as much
        (3.0, 64, 0, 4),
        (0.0, 0, 0, 0),
    ],
)
def test_processes_for_the_share_of_a_core(busy: float, live: int, waiting: int, needed: int) -> None:
    assert processes_needed(busy, live, waiting, episodes=64) == needed


@given(need=st.floats(0, 20), cores=st.integers(1, 16), most=st.integers(1, 60))
def test_a_steady_demand_finds_its_number_and_keeps_it(need: float, cores: int, most: int) -> None:
    """``need``: cores that 64 episodes take together."""

    async def run() -> list[int]:
        made, counts = Made(Workers(1, most), episodes=100, cores=cores), []
        held = await made.places(64)
        for step in range(100):
            live = [child for child in made.children if child.dead is None]
            for child in live:
                child.busy = min(1.0, need / len(live))
            made.pool.look(2.0)
            await settled()
            counts.append(len(made.pool.pids))
            if step == 50:  # the episodes of a process that is to end have ended
                for busy in held:
                    made.pool.leave(busy)
                held = await made.places(64)
        return counts

    counts = asyncio.run(run())
    assert len(set(counts[-25:])) == 1, "no coming and going"
    bound = min(most, cores + 1)
    assert 1 <= counts[-1] <= bound and (counts[-1] == bound or counts[-1] >= need / FULL - 1e-9)


async def test_a_short_burst_starts_nothing() -> None:
    made = Made(Workers(1, 8), 100)
    await made.places(64)
    for _ in range(8):
        made.press()
        made.pool.look(GROW_AFTER - 0.1)
        made.press(0.1)
        made.pool.look(1.0)
    await settled()
    assert made.pool.pids == [0]


async def test_all_versions_share_the_cores() -> None:
    first = Made(Workers(1, 8), 100, cores=3)
    second = Made(Workers(1, 8), 100, budget=first.budget)
    for made in (first, second):
        await made.places(8)
    for _ in range(10):
        for made in (first, second):
            made.press()
            made.pool.look(10.0)
            await settled()
            await made.places(8)
    assert len(first.pool.pids) + len(second.pool.pids) == 2 + 3 and first.budget.left() == 0


async def test_who_finds_no_place_waits_in_turn() -> None:
    made = Made(Workers(1, 1), episodes=2)
    places = await made.places(2)
    order: list[int] = []

    async def comes(number: int) -> None:
        child = await made.place()
        order.append(number)
        await asyncio.sleep(0)
        made.pool.leave(child)

    late = [asyncio.create_task(comes(number)) for number in range(6)]
    await settled()
    assert not order and made.pool.waiting == 6 and made.pool.live == 2
    late[1].cancel()
    await settled()
    for child in places:
        made.pool.leave(child)
    await asyncio.gather(*late, return_exceptions=True)
    assert order == [0, 2, 3, 4, 5] and made.pool.live == made.pool.waiting == 0


async def test_a_further_process_that_cannot_start_harms_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    made = Made(Workers(1, 4), episodes=1)
    place = await made.place()
    made.broken = BrokenPlugin(Failure("no memory"), died=True)
    waiting = asyncio.create_task(made.place())
    await settled()
    made.pool.look(1.0)
    await settled()
    assert made.version.buried == [1] and not waiting.done() and made.pool.further == 0
    made.broken = None
    made.pool.look(100.0)
    await settled()
    assert made.pool.pids == [0], "the next try waits"
    monkeypatch.setattr(pools, "HOLD", 0.0)
    made.pool._held = 0.0
    made.pool.look(1.0)
    assert (await waiting).pid == 1
    made.pool.leave(place)


@given(steps=st.lists(st.sampled_from("tlcdk+-"), max_size=60), episodes=st.integers(1, 3), most=st.integers(1, 3))
def test_no_place_is_given_twice_or_lost(steps: list[str], episodes: int, most: int) -> None:
    """Episodes come (t), leave (l), are cancelled (c); processes die (d); time passes with and without pressure."""

    async def run() -> None:
        made = Made(Workers(1, most), episodes)
        made.version.health.clock = iter(range(0, 1 << 40, 1000)).__next__  # deaths lie far apart
        held: list[Child] = []
        coming: list[asyncio.Task[Child]] = []
        for step in steps:
            if step == "t":
                coming.append(asyncio.create_task(made.place()))
            elif step == "l" and held:
                made.pool.leave(held.pop())
            elif step == "c" and coming:
                coming.pop().cancel()
            elif step == "d" and made.pool.pids:
                dying = made.children[made.pool.pids[0]]
                held = [child for child in held if cast(FakeChild, child) is not dying]
                dying.die()
            elif step in "+-":
                made.press() if step == "+" else None
                made.pool.look(100.0)
            await settled()
            held += [task.result() for task in coming if task.done() and task.result().dead is None]
            coming = [task for task in coming if not task.done()]
            assert made.pool.live == len(held) and made.pool.waiting == len(coming)
            assert all(child.live <= episodes for child in made.pool.children)
            assert 1 <= len(made.pool.pids) <= most or not made.children
            room = sum(episodes - child.live for child in made.pool.children if not child.leaving)
            assert not coming or not room or not made.pool.pids
        made.pool.end("over")
        await asyncio.gather(*coming, return_exceptions=True)

    asyncio.run(run())


@pytest.mark.parametrize("mended", [True, False])
async def test_who_waits_for_a_replacement_is_not_forgotten(mended: bool) -> None:
    """The full process has ended before the one in its place fails to start."""
    made = Made(episodes=2)
    places = await made.places(2)
    waiting = asyncio.ensure_future(made.place())
    await settled()
    made.children[0].full = True
    made.broken = BrokenPlugin(Failure("no memory"), died=mended)
    for child in places:
        made.pool.leave(child)
    assert made.children[0].dead is not None and made.pool.pids == []
    await settled()
    if mended:
        made.broken = None
        assert (await asyncio.wait_for(waiting, 10.0)).pid == 1
    else:
        with pytest.raises(BrokenPlugin, match="no memory"):
            await asyncio.wait_for(waiting, 10.0)


async def test_a_process_that_is_to_end_is_not_forgotten() -> None:
    """At its last episode a question about its rows was still open in it."""
    made = Made(Workers(1, 4), episodes=1)
    first = await made.place()
    waiting = asyncio.create_task(made.place())
    await settled()
    made.pool.look(1.0)
    second = await waiting
    made.children[0].full = True
    made.children[0].idle = False
    made.pool.leave(first)
    await settled()
    assert made.children[0].dead is None
    made.children[0].idle = True
    made.pool.look(1.0)
    assert made.children[0].dead is not None
    made.pool.leave(second)


def scoring(cores: int = 2, workers: Workers | None = None, most: int = 0) -> Made:
    return Made(workers, cores=cores, budget=ProcessBudget(cores, most), scores=True)


@pytest.mark.parametrize(
    ("workers", "cores", "most", "processes"),
    [
        (Workers(1, 1), 64, 0, 1),
        (Workers(1, 3), 64, 0, 3),
        (None, 64, 0, 10),
        (None, 2, 0, 3),
        (None, 2, 5, 5),
        (None, 64, 1, 1),
    ],
)
async def test_scoring_processes_have_bounds(workers: Workers | None, cores: int, most: int, processes: int) -> None:
    """The author's, the machine's (one process, and as many further ones as there are cores), and the settings'."""
    made = scoring(cores, workers, most)
    requests = [asyncio.create_task(made.place()) for _ in range(10)]
    for _ in range(8):
        await settled()
        made.pool.look(10.0)
    await settled()
    assert len(made.children) == processes and made.pool.live == processes, "one request at a time in each"
    made.pool.end("over")
    await asyncio.gather(*requests, return_exceptions=True)


async def test_no_scoring_process_is_kept_without_work() -> None:
    made = scoring()
    made.pool.leave(await made.place())
    made.pool.look(REST)
    assert not made.pool.pids and made.children[0].dead is not None


async def test_a_scoring_process_that_dies_brings_no_rest() -> None:
    """A few replies kill the function: the others have their scores."""
    made = scoring()
    for number in range(9):
        child = await made.place()
        assert child.pid == number
        made.children[-1].die()
    assert made.version.health.resting is None and len(made.version.buried) == 9 and not made.pool.pids


async def test_a_version_ends_while_its_scoring_process_starts() -> None:
    made = scoring()
    made.may_start.clear()
    request = asyncio.create_task(made.place())
    await settled()
    made.pool.end("a newer version took its place")
    with pytest.raises(BrokenPlugin, match="a newer version"):
        await request
    made.may_start.set()
    await settled()
    assert not made.pool.pids and [child.dead is not None for child in made.children] == [True]
