"""An episode's own time: what it computes and waits for counts; asks, siblings and a busy machine do not."""

from __future__ import annotations

import asyncio
import inspect
import socket
import time
from collections.abc import Iterator

import pytest

from marlaas.plugins.host import meter
from marlaas.plugins.host.meter import OwnTime, Steps, Watchdog, charge_tasks, charged
from marlaas.plugins.sandbox_supervisor import wall_limit


class World:
    """A process whose clocks are set by the test."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = self.processor = self.computed = self.delayed = 0.0
        self.expired: list[bool] = []
        monkeypatch.setattr(meter, "monotonic", lambda: self.now)
        monkeypatch.setattr(time, "process_time", lambda: self.processor)
        monkeypatch.setattr(meter, "thread_time", lambda: self.computed)
        monkeypatch.setattr(meter, "_clock", lambda clock: self.computed)
        monkeypatch.setattr(meter, "read_delays", lambda: {1: self.delayed})
        monkeypatch.setattr(meter, "LIMITS", set())
        self.ends = socket.socketpair()
        self.watchdog = Watchdog(self.ends[0])

    def own(self, seconds: float) -> OwnTime:
        return OwnTime(seconds, self.expired.append)

    async def passes(self, seconds: float, computed: float = 0.0, others: float = 0.0, delayed: float = 0.0) -> None:
        """Time passes, in which the episode and others compute, and the process waits for a core."""
        self.now += seconds
        self.computed += computed
        self.processor += computed + others
        self.delayed += delayed
        for own in meter.LIMITS:
            own.on_loop += computed
        self.watchdog.tick(self.now)
        await asyncio.sleep(0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(monkeypatch)
    yield made
    for end in made.ends:
        end.close()


async def test_waiting_and_computing_count(world: World) -> None:
    world.own(10)
    await world.passes(4)
    await world.passes(5, computed=5)
    assert world.expired == []
    await world.passes(1)
    assert world.expired == [False]


async def test_asks_do_not_count(world: World) -> None:
    own = world.own(10)
    await world.passes(4)
    own.pause()
    own.pause()
    await world.passes(96)
    own.resume()
    await world.passes(1)
    own.resume()
    await world.passes(5)
    assert world.expired == [] and own.seconds == pytest.approx(9.0)
    await world.passes(1)
    assert world.expired == [False]


@pytest.mark.parametrize("taken", [{"others": 9.0}, {"delayed": 9.0}])
async def test_what_others_take_does_not_count(world: World, taken: dict[str, float]) -> None:
    """Nine tenths of the time are a sibling's, or the machine's."""
    own = world.own(4)
    for _ in range(3):
        await world.passes(10, **taken)
    assert world.expired == [] and own.seconds == pytest.approx(3.0)
    await world.passes(10, **taken)
    assert world.expired == [False]


async def test_who_holds_the_loop_is_charged_for_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sleeps in its step: that is its own time, and no sibling's."""
    holder, sibling = world.own(100), world.own(100)
    monkeypatch.setattr(meter._Running, "step", (holder, world.computed, world.now))
    await world.passes(9)
    assert holder.seconds == pytest.approx(9.0) and sibling.seconds == 0.0


async def test_the_wall_limit_ends_what_is_starved(world: World) -> None:
    world.own(1)
    await world.passes(wall_limit(1) - 1, others=100)
    assert world.expired == []
    await world.passes(1, others=10)
    assert world.expired == [True]


async def test_the_wait_of_a_new_thread_does_not_count(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A child process that began after the last look has waited for a core since."""
    own = world.own(100)
    await world.passes(1, delayed=1)
    monkeypatch.setattr(meter, "read_delays", lambda: {1: 2.0, 2: 0.5})
    await world.passes(10, computed=4)
    assert own.seconds == pytest.approx(4.0 + 4.5)


@pytest.mark.parametrize("looks", [1, 5], ids=["after each ask", "after five asks"])
async def test_steps_that_end_between_two_looks_are_charged(world: World, looks: int) -> None:
    """It sleeps for a quarter of a second, 20 times, each between two asks."""
    own, sibling = world.own(100), world.own(100)

    async def episode() -> None:
        for _ in range(20):
            world.now += 0.25
            own.pause()
            await asyncio.sleep(0)
            own.resume()

    task = charged(episode(), own)
    for number in range(1, 21):
        await asyncio.sleep(0)
        world.now += 0.1
        if number % looks == 0:
            world.watchdog.tick(world.now)
    await task
    assert own.seconds == pytest.approx(5.0, abs=0.01) and sibling.seconds == pytest.approx(2.0, abs=0.01)


@pytest.mark.parametrize("taken", ["others", "delayed", "computed"])
async def test_a_step_that_others_hold_up_is_not_charged(world: World, taken: str) -> None:
    """It waits for a core, or for the interpreter's lock, or computes; it is charged for what it computes alone."""
    own = world.own(100)

    async def episode() -> None:
        world.now += 0.25
        if taken == "delayed":
            world.delayed += 0.25
        else:
            world.processor += 0.25
        world.computed += 0.25 if taken == "computed" else 0.0

    await charged(episode(), own)
    await world.passes(0.0)
    assert own.seconds == pytest.approx(0.25 if taken == "computed" else 0.0, abs=0.01)


async def test_short_waits_between_asks_are_charged(world: World) -> None:
    """A thousand of 10 ms, of which few meet a look."""
    own = world.own(60)
    for number in range(1000):
        own.pause()
        world.now += 0.01
        own.resume()
        world.now += 0.01
        if number % 25 == 0:
            world.watchdog.tick(world.now)
    await world.passes(0.0)
    assert own.seconds == pytest.approx(10.0)


async def test_time_that_is_given_between_a_look_and_its_end_is_had(world: World) -> None:
    """A cancelled episode has its grace, though its time was up just then."""
    own = world.own(1)
    world.now += 2
    world.watchdog.tick(world.now)
    own.renew(5, lambda wall: world.expired.append(True))
    await world.passes(4)
    assert world.expired == []
    await world.passes(1)
    assert world.expired == [True], "and it is watched as before"


async def test_grace_passes_during_asks(world: World) -> None:
    own = world.own(10)
    own.pause()
    await world.passes(50)
    own.renew(5, world.expired.append, always=True)
    own.resume()
    await world.passes(3)
    own.pause()
    await world.passes(1)
    assert world.expired == []
    await world.passes(1)
    assert world.expired == [False]


def compute(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        pass


async def test_tasks_and_threads_of_an_episode_are_its_own() -> None:
    loop, own = asyncio.get_running_loop(), OwnTime(60, lambda wall: None)

    async def branch() -> None:
        compute(0.01)

    async def episode() -> None:
        await asyncio.gather(branch(), branch())

    def thread() -> None:
        with own.in_thread():
            compute(0.01)
            assert own.threads == 1 and own.seconds >= 0.03

    charge_tasks(loop)
    try:
        await charged(episode(), own)
        await branch()
    finally:
        loop.set_task_factory(None)
    assert 0.02 <= own.on_loop < 0.03
    await asyncio.to_thread(thread)
    assert own.seconds >= 0.03 and own.threads == 0


async def test_steps_look_like_the_coroutine_inside() -> None:
    """Libraries ask a task whether its coroutine has begun."""

    async def episode() -> str:
        await asyncio.sleep(0)
        return "played"

    steps = Steps(episode(), OwnTime(60, lambda wall: None))
    assert inspect.getcoroutinestate(steps) == inspect.CORO_CREATED
    task = asyncio.get_running_loop().create_task(steps)
    await asyncio.sleep(0)
    assert inspect.getcoroutinestate(steps) == inspect.CORO_SUSPENDED
    assert "episode" in repr(task) and await task == "played"


async def test_cancelling_and_errors_go_through() -> None:
    told = []

    async def episode() -> None:
        try:
            await asyncio.Future()
        except asyncio.CancelledError:
            told.append("cancelled")
            raise KeyError("lost") from None

    task = charged(episode(), OwnTime(60, lambda wall: None))
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(KeyError):
        await task
    assert told == ["cancelled"] and meter._Running.step is None
