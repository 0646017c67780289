"""Cores are shared equally: things end when a textbook says, and no core does more than it can."""

from __future__ import annotations

import asyncio
import math
from dataclasses import dataclass

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.simulate.time import Cores, Process, VirtualLoop, run_virtually

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


def own_loop() -> VirtualLoop:
    loop = asyncio.get_running_loop()
    assert isinstance(loop, VirtualLoop)
    return loop


def ends(jobs: list[Job], number: float) -> list[float]:
    """When each ends."""

    async def main() -> list[float]:
        cores, loop = Cores(own_loop(), number), own_loop()

        async def live(job: Job) -> float:
            await asyncio.sleep(job.begins)
            over: asyncio.Future[float] = loop.create_future()
            cores.begin(job.seconds, lambda: over.set_result(cores.now), job.threads)
            return await over

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


@given(JOBS, st.integers(1, 6))
def test_work_is_conserved(jobs: list[Job], number: int) -> None:
    """No span has more work than its cores can do, and they do all that there is where there is enough for all."""
    ended = ends(jobs, number)
    work = math.fsum(job.seconds * job.threads for job in jobs)
    first, last = min(job.begins for job in jobs), max(ended)
    assert work <= number * (last - first) + CLOSE
    if all(job.begins == first for job in jobs) and all(job.threads >= number for job in jobs):
        assert work == pytest.approx(number * (last - first), abs=CLOSE), "no core was idle"


@given(JOBS, st.integers(1, 6))
def test_nobody_overtakes(jobs: list[Job], number: int) -> None:
    ended = list(zip(jobs, ends(jobs, number), strict=True))
    for one, end in ended:
        for other, later in ended:
            if one.begins <= other.begins and one.seconds <= other.seconds:
                assert end <= later + CLOSE
        assert end >= one.begins + one.seconds - CLOSE


@given(JOBS)
def test_many_cores_slow_nobody_down(jobs: list[Job]) -> None:
    alone = pytest.approx([job.begins + job.seconds for job in jobs], abs=CLOSE)
    assert ends(jobs, sum(job.threads for job in jobs)) == alone
    assert ends(jobs, math.inf) == alone


def test_equal_ones_share_a_core_equally() -> None:
    assert ends([Job(0.0, 1.0)] * 4, 1) == pytest.approx([4.0] * 4)
    assert ends([Job(0.0, 1.0), Job(0.0, 2.0), Job(1.0, 3.0)], 2) == pytest.approx([1.0, 2.0, 4.0])


def test_what_was_stopped_leaves_its_share() -> None:
    async def main() -> tuple[float, bool]:
        cores, over, wrong = Cores(own_loop(), 1), asyncio.Event(), asyncio.Event()
        cores.begin(2.0, over.set)
        other = cores.begin(5.0, wrong.set)
        await asyncio.sleep(1.0)
        cores.stop(other)
        cores.stop(other)
        await over.wait()
        return own_loop().time(), wrong.is_set()

    ended, called = run_virtually(main)
    assert ended == pytest.approx(2.5)
    assert not called


def test_the_loop_takes_a_share_from_the_others() -> None:
    """Three on two cores, of which the loop is not slowed; what ends meanwhile ends at its own moment."""

    async def main() -> list[float]:
        cores = Cores(own_loop(), 2)
        short, long = Process(cores).compute(0.5), Process(cores).compute(1.5)
        cores.occupy(1.0)
        busy = own_loop().time()
        return [busy, await short, own_loop().time(), await long, own_loop().time()]

    assert run_virtually(main) == pytest.approx([1.0, 0.75, 1.0, 1.75, 1.75])


def test_who_is_awake_slows_the_others() -> None:
    async def main() -> list[float]:
        cores = Cores(own_loop(), 1)
        first = Process(cores).compute(1.0)
        await asyncio.sleep(0.5)
        cores.wake(1)
        await asyncio.sleep(0.5)
        cores.wake(-1)
        return [await first, own_loop().time()]

    assert run_virtually(main) == pytest.approx([1.25, 1.25])


def test_a_process_does_one_thing_after_the_other() -> None:
    async def main() -> list[tuple[float, float]]:
        loop, ended = own_loop(), list[tuple[float, float]]()
        process = Process(Cores(loop, 1))

        async def work(after: float, seconds: float) -> None:
            await asyncio.sleep(after)
            took = await process.compute(seconds)
            ended.append((loop.time(), took))

        await asyncio.gather(work(0.0, 1.0), work(0.0, 2.0), work(0.5, 0.0), work(0.5, 0.25), work(5.0, 1.0))
        return ended

    expected = [(0.5, 0.0), (1.0, 1.0), (3.0, 2.0), (3.25, 0.25), (6.0, 1.0)]
    assert run_virtually(main) == [pytest.approx(one) for one in expected], "what takes no time waits for nobody"


def test_a_process_that_ended_computes_nothing() -> None:
    async def main() -> bool:
        cores = Cores(own_loop(), 1)
        process = Process(cores)
        first, second = process.compute(1.0), process.compute(1.0)
        process.end()
        await asyncio.sleep(5.0)
        return first.done() or second.done()

    assert run_virtually(main) is False
