"""What a process's time was used for: never more is called idle than was."""

from __future__ import annotations

import threading
import time

import pytest
from hypothesis import given, strategies as st

from marlaas.plugins.host.meter import TICK, Meter, Reading, Usage, idle_between, quiet_between, spent_between

SECONDS = st.floats(0, 100)


@given(SECONDS, SECONDS, st.dictionaries(st.integers(1, 5), SECONDS), st.dictionaries(st.integers(1, 5), SECONDS))
def test_idle_time_has_bounds(wall: float, processor: float, before: dict[int, float], after: dict[int, float]) -> None:
    idle = idle_between(Reading(0.0, 0.0, before), Reading(wall, processor, after))
    assert 0.0 <= idle <= wall
    assert idle <= max(0.0, wall - processor)


def test_threads_that_came_and_went() -> None:
    before, after = Reading(0.0, 0.0, {1: 5.0, 2: 1.0}), Reading(10.0, 2.0, {2: 2.0, 3: 3.0})
    assert idle_between(before, after) == 10.0 - 2.0 - 1.0 - 3.0


def test_a_process_is_quiet_while_no_program_of_it_computes() -> None:
    before = Reading(0.0, 1.0, {1: 5.0}, programs=1.0, running=2.0)
    assert quiet_between(before, Reading(4.0, 2.0, {1: 5.5}, 1.0, 2.0)) == 4.0 - 1.0 - 0.5
    assert quiet_between(before, Reading(4.0, 1.0, {1: 5.0}, 1.0, 3.0)) == 0.0, "a compiler, short of cores perhaps"
    assert quiet_between(before, Reading(4.0, 1.0, {1: 5.0}, 1.0, 2.05)) == 4.0, "one that asks somebody else"
    assert quiet_between(before, Reading(4.0, 1.0, {1: 5.0}, 3.0, 0.0)) == 4.0, "one ended, which is nothing new"
    assert quiet_between(before, Reading(4.0, 1.0, {})) == 0.0, "nobody says who waited for a core"


def test_what_a_request_spent() -> None:
    before = Reading(0.0, 1.0, {1: 5.0})
    assert spent_between(before, Reading(2.0, 3.0, {1: 5.0})) == (2.0, 0.0)
    assert spent_between(before, Reading(2.0, 1.5, {1: 6.0})) == (0.5, 0.5), "it waited for a core half of the time"
    assert spent_between(before, Reading(2.0, 9.0, {1: 5.0})) == (2.0, 0.0), "in several threads"


def test_programs_that_compute_count_for_all_of_the_time() -> None:
    """Nobody knows for how long of it they waited for a core."""
    assert spent_between(Reading(0.0, 0.0), Reading(2.0, 0.0, programs=0.3)) == (2.0, 0.0)
    asks_somebody_else = Reading(2.0, 0.0, programs=0.2)
    assert spent_between(Reading(0.0, 0.0), asks_somebody_else) == pytest.approx((0.2, 1.8))


def test_it_is_read_once_a_tick() -> None:
    readings: list[Reading] = []

    def read() -> Reading:
        readings.append(Reading(now, now / 2))
        return readings[-1]

    now = 0.0
    meter = Meter(read)
    for step in range(100):
        now = step * TICK / 10
        meter.look(now)
    assert len(readings) == 10
    assert meter.free(now) == now / 2
    now += TICK / 2
    assert meter.free(now) == now / 2, "since the last look as in the time before it"


def test_threads_are_charged_while_they_run_and_after() -> None:
    usage, computed, go = Usage(), threading.Event(), threading.Event()

    def compute() -> None:
        usage.enter_thread()
        until = time.thread_time() + 0.02
        while time.thread_time() < until:
            pass
        computed.set()
        go.wait()
        usage.leave_thread()

    thread = threading.Thread(target=compute)
    thread.start()
    computed.wait()
    running = usage.processor
    go.set()
    thread.join()
    assert 0.02 <= running <= usage.processor
