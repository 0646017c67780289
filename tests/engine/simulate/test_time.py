"""Virtual time, cores that are shared equally, and a trainer that computes on them."""

from __future__ import annotations

import asyncio
import math
import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.clock import monotonic, wall_time
from marlaas.engine.simulate.cluster_file import AT_THE_HEAD, Network, Site
from marlaas.engine.simulate.profile import EngineRates, Profile, SamplerRates, TrainerRates
from marlaas.engine.simulate.time import BEGINS, EngineTime, Sharing, StoodStill, cores_of, run_virtually
from marlaas.engine.simulate.workers import Shared, SimulatedTrainer, StateFiles
from marlaas.engine.trainer.protocol import GroupStats, Job, PolicyConfig, TrainGroup, TrainSequence


def test_time_jumps_to_the_next_timer() -> None:
    """Days take no time; what is due first happens first."""
    order: list[str] = []

    async def wait(seconds: float, name: str) -> None:
        await asyncio.sleep(seconds)
        order.append(f"{name} at {monotonic():g}")

    async def main() -> float:
        await asyncio.gather(wait(86400.0, "late"), wait(0.5, "soon"), wait(3600.0, "then"))
        return wall_time() - BEGINS

    began = time.monotonic()
    assert run_virtually(main) == 86400.0
    assert order == ["soon at 0.5", "then at 3600", "late at 86400"]
    assert time.monotonic() - began < 60  # a day, however slow the machine is
    assert wall_time() == pytest.approx(time.time(), abs=60)  # the system's clock rules again


def test_what_would_go_to_a_thread_is_done_at_once() -> None:
    def failing() -> None:
        raise ValueError("no")

    async def main() -> tuple[int, float]:
        with pytest.raises(ValueError, match="no"):
            await asyncio.to_thread(failing)
        return await asyncio.to_thread(lambda: 7), monotonic()

    assert run_virtually(main) == (7, 0.0)


def test_a_standstill_is_told() -> None:
    async def main() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(StoodStill, match="stands still"):
        run_virtually(main)


CLOSE = 1e-6
"""Seconds: sums of some dozen numbers of up to a hundred are rounded to less."""


@dataclass(frozen=True)
class Work:
    """Something that begins at a moment, and computes for so many seconds with so many threads."""

    begins: float
    seconds: float
    threads: int = 1


JOBS = st.lists(
    st.builds(
        Work,
        st.integers(0, 20).map(lambda tenths: tenths / 10),
        st.integers(1, 40).map(lambda tenths: tenths / 10),
        st.integers(1, 3),
    ),
    min_size=1,
    max_size=12,
)


def ends(jobs: list[Work], number: float) -> list[float]:
    """When each ends."""

    async def main() -> list[float]:
        cores = cores_of(number)

        async def live(job: Work) -> float:
            await asyncio.sleep(job.begins)
            await cores.begin(job.seconds, job.threads).over
            return monotonic()

        return await asyncio.gather(*map(live, jobs))

    return run_virtually(main)


def by_the_book(jobs: list[Work], number: float) -> list[float]:
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


@given(JOBS, st.one_of(st.integers(1, 6), st.just(math.inf)))
def test_ends_are_those_of_processor_sharing(jobs: list[Work], number: float) -> None:
    assert ends(jobs, number) == pytest.approx(by_the_book(jobs, number), abs=CLOSE)


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


RATES = TrainerRates(group=0.5, token=0.25, a_pass=4.0)


def group(tokens: int, advantage: float = 1.0, number: int = 0) -> TrainGroup:
    ones = np.ones(tokens)
    sequence = TrainSequence(ones.astype(np.int32), ones.astype(np.uint8), ones.astype(np.float32), advantage)
    return TrainGroup(number, (sequence,))


def trainer_here() -> SimulatedTrainer:
    profile = Profile("made up", (), SamplerRates(0.0, 0.0, 0.0), RATES)
    cores = cores_of(2)
    network, engine = Network(AT_THE_HEAD, {}), EngineTime(cores, EngineRates())
    shared = Shared(network, 0, engine, profile, StateFiles(0, "base"), {"here": cores})
    return SimulatedTrainer("training", Site("here", 1.0, threads=1), shared)


def seconds_of(folder: Path, *groups: TrainGroup) -> tuple[float, list[float]]:
    """How long a call takes with these groups, each of a policy of its own; and the seconds of each."""

    async def main() -> tuple[float, list[float]]:
        trainer = trainer_here()
        jobs = tuple(Job(f"policy {number}", (one,)) for number, one in enumerate(groups))
        for job in jobs:
            await trainer.open(job.policy, PolicyConfig(), str(folder / job.policy), False)
        began = monotonic()
        results = await trainer.accumulate_together(jobs)
        return monotonic() - began, [one.seconds for one in results if isinstance(one, GroupStats)]

    return run_virtually(main)


def test_what_is_fixed_is_paid_once(tmp_path: Path) -> None:
    alone, _ = seconds_of(tmp_path, group(4))
    together, parts = seconds_of(tmp_path, group(4), group(12))
    assert alone == pytest.approx(4.0 + 0.5 + 1.0)
    assert together == pytest.approx(4.0 + 2 * 0.5 + 4.0)
    assert parts == pytest.approx([together / 4, 3 * together / 4]), "by their tokens"


def test_groups_of_equal_rewards_take_nothing(tmp_path: Path) -> None:
    assert seconds_of(tmp_path, group(4, advantage=0.0)) == (0.0, [0.0])
    assert seconds_of(tmp_path, group(4), group(4, advantage=0.0))[0] == pytest.approx(5.5)
