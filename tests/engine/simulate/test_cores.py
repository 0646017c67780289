"""Cores are shared equally: things end when a textbook says, and no core does more than it can."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.clock import monotonic
from marlaas.engine.simulate.profile import EngineRates
from marlaas.engine.simulate.time import EngineTime, Sharing, cores_of, run_virtually

CLOSE = 1e-6
"""Seconds: sums of some dozen numbers of up to a hundred are rounded to less."""


@dataclass(frozen=True)
class Job:
    """Something that begins at a moment, and computes for so many seconds with so many threads."""

    begins: float
    seconds: float
    threads: int = 1


JOBS = st.lists(
    st.builds(
        Job,
        st.integers(0, 20).map(lambda tenths: tenths / 10),
        st.integers(1, 40).map(lambda tenths: tenths / 10),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=12,
)


def ends(jobs: list[Job], number: float) -> list[float]:
    """When each ends."""

    async def main() -> list[float]:
        cores = cores_of(number)

        async def live(job: Job) -> float:
            await asyncio.sleep(job.begins)
            await cores.begin(job.seconds, job.threads).over
            return monotonic()

        return await asyncio.gather(*map(live, jobs))

    return run_virtually(main)


def by_the_book(jobs: list[Job], number: float) -> list[float]:
    """The same, step by step from one event to the next, with what is left of each."""
    left = {place: job.seconds for place, job in enumerate(jobs)}
    ended, now = [math.nan] * len(jobs), 0.0
    while left:
        at_it = [place for place in left if jobs[place].begins <= now + CLOSE / 100]
        speed = min(1.0, number / max(1, sum(jobs[place].threads for place in at_it)))
        coming = [jobs[place].begins - now for place in left if place not in at_it]
        step = min([*coming, *(left[place] / speed for place in at_it)])
        now += step
        for place in at_it:
            left[place] -= step * speed
            if left[place] < CLOSE / 100:
                ended[place] = now
                del left[place]
    return ended


@given(JOBS, st.integers(1, 6))
def test_ends_are_those_of_processor_sharing(jobs: list[Job], number: int) -> None:
    assert ends(jobs, number) == pytest.approx(by_the_book(jobs, number), abs=CLOSE)


@given(JOBS)
def test_many_cores_slow_nobody_down(jobs: list[Job]) -> None:
    alone = pytest.approx([job.begins + job.seconds for job in jobs], abs=CLOSE)
    assert ends(jobs, sum(job.threads for job in jobs)) == alone
    assert ends(jobs, math.inf) == alone


def test_equal_ones_share_a_core_equally() -> None:
    assert ends([Job(0.0, 1.0)] * 4, 1) == pytest.approx([4.0] * 4)
    assert ends([Job(0.0, 1.0), Job(0.0, 2.0), Job(1.0, 3.0)], 2) == pytest.approx([1.0, 2.0, 4.0])


def test_what_was_stopped_leaves_its_share() -> None:
    async def main() -> float:
        cores = cores_of(1)
        first, other = cores.begin(2.0), cores.begin(5.0)
        await asyncio.sleep(1.0)
        cores.stop(other)
        cores.stop(other)
        await first.over
        return monotonic()

    assert run_virtually(main) == pytest.approx(1.5 + 1.0)


def test_the_loop_takes_a_share_from_the_others() -> None:
    """Three on two cores, of which the engine's loop is not slowed: in its second the others do two thirds of one."""

    async def main() -> list[float]:
        cores = cores_of(2)
        short, long = cores.begin(0.5), cores.begin(1.5)
        EngineTime(cores, EngineRates(call=1.0)).call()
        busy, ended = monotonic(), short.over.done()
        await long.over
        return [busy, ended, monotonic()]

    assert run_virtually(main) == pytest.approx([1.0, True, 1.75])


def test_who_is_awake_slows_the_others() -> None:
    """A device with jobs keeps its threads awake; one that stands still goes on later."""

    async def main() -> list[float]:
        cores = cores_of(1)
        device = Sharing(lambda jobs: 1.0, (cores, 1))
        first = cores.begin(1.0)
        await asyncio.sleep(0.5)
        device.stall(0.25)
        await device.begin(0.25).over
        ended = monotonic()
        await first.over
        return [ended, monotonic(), device.busy]

    assert run_virtually(main) == pytest.approx([1.0, 1.25, 0.5])
