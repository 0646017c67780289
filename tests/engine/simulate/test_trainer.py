"""A simulated trainer: what is fixed in a call is paid once, and its seconds are divided among the policies in it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from marlaas.engine.clock import monotonic
from marlaas.engine.errors import AdapterError
from marlaas.engine.simulate.cluster_file import AT_THE_HEAD, Network, Site
from marlaas.engine.simulate.profile import EngineRates, Profile, SamplerRates, TrainerRates
from marlaas.engine.simulate.time import EngineTime, cores_of, run_virtually
from marlaas.engine.simulate.workers import Shared, SimulatedTrainer, StateFiles
from marlaas.engine.trainer.protocol import GroupStats, Job, PolicyConfig, TrainGroup, TrainSequence

RATES = TrainerRates(group=0.5, token=0.25, a_pass=4.0)


def group(tokens: int, advantage: float = 1.0, number: int = 0) -> TrainGroup:
    ones = np.ones(tokens)
    sequence = TrainSequence(ones.astype(np.int32), ones.astype(np.uint8), ones.astype(np.float32), advantage)
    return TrainGroup(number, (sequence,))


def trainer_here() -> SimulatedTrainer:
    profile = Profile("made up", (), SamplerRates(0.0, 0.0, 0.0), RATES)
    cores = cores_of(2)
    engine, states = EngineTime(cores, EngineRates()), StateFiles(0, "base")
    shared = Shared(Network(AT_THE_HEAD, {}), 0, engine, profile, states, {"here": cores})
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


def test_groups_that_come_twice_or_to_the_wrong_step_are_refused(tmp_path: Path) -> None:
    async def main() -> None:
        first, second = trainer_here(), trainer_here()
        await first.open("a", PolicyConfig(), str(tmp_path / "0"), False)
        await first.accumulate("a", (group(4, number=0),))
        with pytest.raises(AdapterError, match=r"A group of a came twice: \[0, 0\]"):
            await first.accumulate("a", (group(4, number=0),))
        await second.set_state("a", await first.get_state("a"))
        stats = await second.accumulate("a", (group(4, number=1),), path=str(tmp_path / "1"))
        assert stats.step is not None and stats.step.step == 1
        await second.accumulate("a", (group(4, number=2), group(4, number=4)))
        with pytest.raises(AdapterError, match=r"Step 2 of a has the wrong groups: \[2, 4\]"):
            await second.step("a", str(tmp_path / "2"))

    run_virtually(main)
