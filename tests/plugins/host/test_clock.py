"""The episode's clock: what it computes and waits for counts; asks, siblings and a busy machine do not."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from marlaas.plugins.host.meter import Clock, Meter, Reading, Usage
from marlaas.plugins.sandbox_supervisor import wall_limit


@dataclass
class World:
    """A loop and a process whose times are set by the test."""

    now: float = 0.0
    processor: float = 0.0
    delayed: float = 0.0
    timers: list[asyncio.TimerHandle] = field(default_factory=list)
    expired: list[bool] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.usage = Usage()
        self.meter = Meter(lambda: Reading(self.now, self.processor, {1: self.delayed}))

    def time(self) -> float:
        return self.now

    def call_later(self, delay: float, callback: Callable[[], None]) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(self.now + delay, callback, (), self)  # type: ignore[arg-type]
        self.timers.append(timer)
        return timer

    def get_debug(self) -> bool:
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        pass

    def clock(self, seconds: float) -> Clock:
        return Clock(self, seconds, self.expired.append, self.usage, self.meter, self.time)  # type: ignore[arg-type]

    def passes(self, seconds: float, *, computed: float = 0.0, others: float = 0.0, delayed: float = 0.0) -> None:
        """Time passes, in which the episode and others compute, and the process waits for a core."""
        self.now += seconds
        self.processor += computed + others
        self.usage.on_loop += computed
        self.delayed += delayed
        self.meter.look(self.now)
        for timer in [one for one in self.timers if one.when() <= self.now and not one.cancelled()]:
            self.timers.remove(timer)
            timer._run()

    def due(self) -> list[float]:
        return [timer.when() for timer in self.timers if not timer.cancelled()]


def test_waiting_and_computing_count() -> None:
    world = World()
    world.clock(10)
    world.passes(4)
    world.passes(5, computed=5)
    assert world.expired == [] and world.due() == [10]
    world.passes(1)
    assert world.expired == [False]


def test_asks_do_not_count() -> None:
    world = World()
    clock = world.clock(10)
    world.passes(4)
    clock.pause()
    clock.pause()
    world.passes(96)
    clock.resume()
    world.passes(1)
    assert world.expired == []
    clock.resume()
    world.passes(5)
    assert world.expired == [] and world.due() == [107]
    world.passes(1)
    assert world.expired == [False]


@pytest.mark.parametrize("taken", [{"others": 9.0}, {"delayed": 9.0}])
def test_what_others_take_does_not_count(taken: dict[str, float]) -> None:
    """Nine tenths of the time are a sibling's, or the machine's."""
    world = World()
    clock = world.clock(4)
    for _ in range(3):
        world.passes(10, **taken)
    assert world.expired == [] and clock.own(world.now) == pytest.approx(3.0)
    world.passes(10, **taken)
    assert world.expired == [False]


def test_a_loop_that_a_sibling_keeps_does_not_count() -> None:
    world = World()
    clock = world.clock(4)
    world.meter.blocked += 9.0  # it sleeps in its step
    world.passes(10)
    assert world.expired == [] and clock.own(world.now) == pytest.approx(1.0)


def test_a_loop_that_it_keeps_itself_counts() -> None:
    world = World()
    world.clock(4)
    world.meter.blocked += 9.0
    world.usage.blocked += 9.0
    world.passes(10)
    assert world.expired == [False]


def test_the_wall_limit_ends_what_is_starved() -> None:
    world = World()
    world.clock(1)
    while world.now < wall_limit(1):
        assert world.expired == []
        world.passes(1, others=1.0)
    world.passes(1, others=1.0)
    assert world.expired == [True], "nobody knows whether it was to blame"


def test_short_spans_between_looks_are_not_lost() -> None:
    """Of a thousand spans of 10 ms between asks, few meet a look at the process; the others count as it did before."""
    world = World()
    clock = world.clock(60)
    for _ in range(1000):
        clock.pause()
        world.passes(0.01)
        clock.resume()
        world.passes(0.01)
    assert clock.own(world.now) == pytest.approx(10.0, rel=0.1), "but for the first half second, before a second look"


def test_a_step_under_way_is_judged() -> None:
    world = World()
    clock = world.clock(2)
    world.passes(1, others=1.0)
    assert clock.verdict(1.5) == ""
    assert clock.verdict(2.0) == "own"


def test_a_stopped_clock_stays_stopped() -> None:
    world = World()
    clock = world.clock(10)
    clock.pause()
    clock.stop()
    clock.resume()
    assert world.due() == []
