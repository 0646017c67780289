"""Slow environments: what is reckoned on virtual time, who waits for whom in a batch, and what the rows are made of."""

from __future__ import annotations

import asyncio
import importlib.util
import re
from dataclasses import replace
from random import Random
from types import ModuleType

import pytest

from benchmarks import PLUGINS, ROOT
from benchmarks.many_tasks import heavy_tails, trajectories
from benchmarks.many_tasks.arrival import Setting, reckon
from benchmarks.many_tasks.heavy_tails import Lone
from benchmarks.many_tasks.trajectories import ALL, ALONE, ARMS, BATCH, FIRST, STALE, TARGET, Scale, Situation
from marlaas.engine.store.rows import EvalRow

from .test_many_tasks import run, task


@pytest.fixture(scope="module")
def waiting() -> ModuleType:
    spec = importlib.util.spec_from_file_location("waiting", PLUGINS / "waiting" / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_constant_latency_leaves_one_cycle_per_window() -> None:
    """A cycle of three steps is the latency and the first step's computing: the other two compute meanwhile."""
    assert reckon(Setting(0.0, staleness=2, compute=0.25), 100).step == pytest.approx(1.25 / 3, rel=0.02)
    assert reckon(Setting(0.0, staleness=0, compute=0.25), 100).step == pytest.approx(1.25)
    assert reckon(Setting(0.0, staleness=8, compute=0.25), 100).step == pytest.approx(0.25), "computing is all"
    assert heavy_tails.reckoned_compute(Lone({(0.0, 0): (0.5 * 1.25 / 3,)})) == pytest.approx(0.25)


def test_what_is_reckoned_repeats_itself() -> None:
    heavy = Setting(1.0, redundant=2)
    assert reckon(heavy, 50, seed=3) == reckon(heavy, 50, seed=3) != reckon(heavy, 50, seed=4)


def test_redundant_members_cost_age_nothing_and_time_less() -> None:
    plain, redundant = reckon(Setting(1.0), 200), reckon(Setting(1.0, redundant=6), 200)
    assert redundant.step < plain.step / 3 and redundant.given_up == plain.given_up == 0.0
    assert redundant.taken < 0.5 < 0.9 < plain.taken, "those that count are quick ones"


@pytest.mark.parametrize("sigma", [1.0, 1.5, 2.0])
@pytest.mark.parametrize(("staleness", "redundant"), [(2, 6), (4, 4)])
def test_heavy_tails_cost_little_as_is_recommended(sigma: float, staleness: int, redundant: int) -> None:
    """At most 1.2 times what a constant latency costs with the shipped defaults; without it is seven times and more."""
    constant = reckon(Setting(0.0, groups=8, compute=0.2), 100).step
    setting = Setting(sigma, staleness, redundant, groups=8, compute=0.2)
    assert reckon(setting, 200).step <= 1.2 * constant
    assert reckon(replace(setting, staleness=2, redundant=0), 200).step > 5 * constant


def test_the_order_of_arrival_gives_groups_up() -> None:
    plain, arrival = reckon(Setting(1.0), 200), reckon(Setting(1.0, order="arrival"), 200)
    assert arrival.step < plain.step and arrival.given_up > 0.1 and arrival.age < plain.age
    assert heavy_tails.work(Setting(1.0, redundant=4), plain) == 1.5
    assert heavy_tails.work(Setting(1.0), replace(plain, given_up=0.5)) == 2.0


def test_the_documents_say_what_is_reckoned() -> None:
    """The table in ``docs/operations/speed.md``; seeds differ by a tenth where no member is redundant."""
    page = (ROOT / "docs" / "operations" / "speed.md").read_text(encoding="utf-8")
    found = re.findall(r"^\| (\d) \| (\d) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|$", page, re.MULTILINE)
    constant = reckon(Setting(0.0, groups=8, compute=0.2), 100).step
    assert len(found) == 7
    for staleness, redundant, *beside in found:
        for sigma, said in zip((1.0, 1.5, 2.0), beside, strict=True):
            setting = Setting(sigma, int(staleness), int(redundant), groups=8, compute=0.2)
            assert reckon(setting, 150).step / constant == pytest.approx(float(said), rel=0.2, abs=0.06)


async def test_a_batch_goes_on_with_its_slowest(waiting: ModuleType) -> None:
    batch = waiting.Batch(3)
    arrived = [asyncio.ensure_future(batch.arrive(0)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in arrived)
    await asyncio.wait_for(batch.arrive(0), 1)
    await asyncio.wait_for(asyncio.gather(*arrived), 1)


async def test_a_batch_does_not_wait_for_who_has_left(waiting: ModuleType) -> None:
    batch = waiting.Batch(3)
    first = [asyncio.ensure_future(batch.arrive(0)) for _ in range(3)]
    await asyncio.wait_for(asyncio.gather(*first), 1)
    second = [asyncio.ensure_future(batch.arrive(1)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(one.done() for one in second)
    batch.leave(1)
    await asyncio.wait_for(asyncio.gather(*second), 1)
    batch.leave(2)
    await asyncio.wait_for(batch.arrive(2), 1)


def test_tools_take_their_mean_and_fail_as_often_as_asked(waiting: ModuleType) -> None:
    draw = Random(1)
    waits = waiting.latencies(draw, 20_000, 0.5, 1.0)
    assert sum(waits) / len(waits) == pytest.approx(0.5, rel=0.05)  # 0.009 standard errors of the mean
    fates = [waiting.fate(draw, 4, 0.2) for _ in range(5_000)]
    failed = [turn for turn, _ in fates if turn < 4]
    assert len(failed) == pytest.approx(1_000, rel=0.1) and set(failed) == set(range(4))
    assert sum(hangs for _, hangs in fates) == pytest.approx(500, rel=0.15)


def test_arms_differ_in_what_they_are_named_for() -> None:
    specs = {arm: trajectories.task(Situation(0.3), arm, Scale(), "x") for arm in ARMS}
    assert {arm: (spec.train.max_staleness, spec.train.redundant) for arm, spec in specs.items()} == {
        BATCH: (0, 0), ALONE: (0, 0), FIRST: (0, 2), STALE: (2, 0), ALL: (2, 2),
    }  # fmt: skip
    batches = {arm: spec.environment_config["batch"] for arm, spec in specs.items()}
    assert batches == {arm: specs[arm].group_episodes * (arm == BATCH) for arm in ARMS}
    sigma = specs[ALONE].environment_config["sigma"]
    assert sigma == pytest.approx(0.5545, abs=1e-4)  # the root of ln(1 + (0.3 / 0.5)²)


def test_rows_set_each_arm_beside_the_batch() -> None:
    """Tasks begin at 100 s and have two steps."""
    ends = dict(zip(ARMS, (112.0, 108.0, 106.0, 104.0, 103.0), strict=True))
    made = trajectories.by_arm(run(*(task(arm.name, end + 0.0, score=0.9) for arm, end in ends.items())))
    assert trajectories.pace(made[BATCH]) == 6.0
    situation = Situation(0.3, scored=True)
    scored = {
        arm: replace(one, evals=(EvalRow(2, "v", TARGET, 0.0, 8, None, {}, created=ends[arm]),))
        for arm, one in made.items()
    }
    found = {(row.what, row.other): row for row in trajectories.rows({situation: [scored]})}
    alone = found["a step, deviation 0.3 s: each episode by itself", BATCH.name]
    assert alone.ratio is not None and alone.ratio.middle == pytest.approx(12 / 8)
    first = found[f"a step, deviation 0.3 s: {FIRST.name}", ALONE.name]
    assert first.ratio is not None and first.ratio.middle == pytest.approx(8 / 6)
    score = found[f"to a held-out score of 80%, deviation 0.3 s: {STALE.name}", BATCH.name]
    assert score.ratio is not None and score.ratio.middle == pytest.approx(12 / 4)
    with pytest.raises(RuntimeError, match="did not reach"):
        trajectories.to_score(task("slow", 110.0, score=0.5))


def test_a_lone_task_is_set_against_a_constant_latency() -> None:
    lone = Lone({(0.0, 0): (0.2, 0.25), (1.0, 0): (1.0, 1.0), (1.0, 6): (0.2, 0.25)})
    rows = {row.what: row for row in heavy_tails.rows(lone)}
    assert rows["a lone task's step ÷ that, deviation of the logarithm 1, redundant 0"].ours.values == (5.0, 4.0)
    last = rows["a lone task's step ÷ that, deviation of the logarithm 1, redundant 6"]
    assert last.ours.values == (1.0, 1.0) and last.goal == heavy_tails.GOAL
