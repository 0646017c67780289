"""What a process's time was used for: never more is called idle than was."""

from __future__ import annotations

import threading
import time

from hypothesis import given, strategies as st

from marlaas.plugins.host.meter import TICK, Meter, Reading, Usage, idle_between

SECONDS = st.floats(0, 100)


@given(SECONDS, SECONDS, st.dictionaries(st.integers(1, 5), SECONDS), st.dictionaries(st.integers(1, 5), SECONDS))
def test_idle_time_has_bounds(wall: float, processor: float, before: dict[int, float], after: dict[int, float]) -> None:
    idle = idle_between(Reading(0.0, 0.0, before), Reading(wall, processor, after))
    assert 0.0 <= idle <= wall
    assert idle <= max(0.0, wall - processor)


def test_threads_that_came_and_went() -> None:
    before, after = Reading(0.0, 0.0, {1: 5.0, 2: 1.0}), Reading(10.0, 2.0, {2: 2.0, 3: 3.0})
    assert idle_between(before, after) == 10.0 - 2.0 - 1.0 - 3.0


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
