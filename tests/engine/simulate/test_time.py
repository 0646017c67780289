"""Virtual time, a sampler's replies, and a trainer's calls."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.clock import monotonic, wall_time
from marlaas.engine.devices.machine import Link
from marlaas.engine.samplers.protocol import SampleRequest, SamplerStats
from marlaas.engine.simulate.cluster_file import Profile, SamplerRates, Site, TrainerRates
from marlaas.engine.simulate.simulation import BEGINS, StoodStill, run_virtually
from marlaas.engine.simulate.workers import REPLY, Shared, SimulatedSampler, SimulatedTrainer
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


RATES = SamplerRates(a_pass=0.5, row=0.25, read=0.125, turn=1.0)


def requests(*given: tuple[str, int, int]) -> tuple[list[float], SamplerStats]:
    """When each conversation has its reply; given by name, read and sampled tokens."""

    async def main() -> tuple[list[float], SamplerStats]:
        shared = Shared(0, Profile("made up", (), RATES, TRAINS), "base")
        sampler = SimulatedSampler("rollout", Site("here", 2.0, Link(), 8, 64), shared)
        sampler._versions["v"] = "checksum"

        async def reply(name: str, read: int, said: int) -> float:
            REPLY.set(said)
            await sampler.generate(SampleRequest(name, "v", np.arange(read, dtype=np.int32), 64, 1.0, (), 0))
            return monotonic()

        ended = await asyncio.gather(*(reply(*each) for each in given))
        return ended, await sampler.stats()

    return run_virtually(main)


def test_a_reply_takes_reading_and_passes() -> None:
    ended, stats = requests(("a", 8, 10))
    assert ended == pytest.approx([(1.0 + 8 * 0.125 + 10 * 0.75) / 2.0])
    assert stats.busy_seconds == pytest.approx(ended[0]) and (stats.passes, stats.active) == (10, 0)


def test_conversations_share_passes_and_read_in_turn() -> None:
    """The second prompt is the first one's: but for a token it is there."""
    ended, stats = requests(("a", 8, 10), ("b", 8, 10))
    first = (1.0 + 8 * 0.125) / 2.0
    second = first + (1.0 + 0.125) / 2.0
    assert ended == pytest.approx([first + 10 * 1.0 / 2.0, second + 10 * 1.0 / 2.0])
    assert stats.passes == 10 and stats.busy_seconds == pytest.approx(second + 10 * 1.0 / 2.0)


TRAINS = TrainerRates(group=0.5, token=0.25, a_pass=4.0)


def group(tokens: int, advantage: float = 1.0, number: int = 0) -> TrainGroup:
    ones = np.ones(tokens)
    sequence = TrainSequence(ones.astype(np.int32), ones.astype(np.uint8), ones.astype(np.float32), advantage)
    return TrainGroup(number, (sequence,))


def trainer_here() -> SimulatedTrainer:
    profile = Profile("made up", (), RATES, TRAINS)
    return SimulatedTrainer("training", Site("here", 1.0, Link()), Shared(0, profile, "base"))


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
