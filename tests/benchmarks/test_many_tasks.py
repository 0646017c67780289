"""What the benchmarks of many tasks read off their runs; nothing runs here."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest

from benchmarks.beside_trl import eight_tasks
from benchmarks.beside_trl.workload import SHORT
from benchmarks.machinery import sync_engine
from benchmarks.machinery.cores import all_cores, disturbed
from benchmarks.machinery.fleet import FleetRun, TaskRun
from benchmarks.machinery.meter import Usage
from benchmarks.machinery.sync_engine import BLOCKING, OVERLAPPED, UNCHECKED
from benchmarks.many_tasks import concurrency, learned, quality, scaling, staleness, trajectories, weight_sync
from benchmarks.many_tasks.concurrency import load
from benchmarks.many_tasks.quality import ENVIRONMENTS, QUICK, SUMS
from benchmarks.many_tasks.trajectories import ALL, ALONE, ARMS, BATCH, FIRST, STALE, TARGET, Scale, Situation
from benchmarks.many_tasks.weight_sync import Case, Timed
from benchmarks.plugins import waiting
from benchmarks.report import pages
from benchmarks.report.figures import Row
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import parse
from marlaas.engine.store.rows import EvalRow, StepRow, TaskRow
from marlaas.engine.train.admission import PolicyGroups
from marlaas.engine.train.canary import Canary
from marlaas.engine.train.loop import PolicyLearner
from marlaas.engine.train.publishing import ExposedTime, PublishedVersions

from ..engine.train.test_canary import group

USAGE = Usage(10.0, {"rollout": 6.0, "training": 3.0, "engine": 0.5, "env": 0.5}, {"rollout": 200.0}, 0.05)


def task(
    name: str, finished: float, tenant: str = "lab", scores: Sequence[float] = (0.25, 0.5), age: float = 1.0
) -> TaskRun:
    """A task of two steps, the last of which ends at ``finished``, with held-out scores every ten steps."""
    row = TaskRow(
        id=1, tenant=tenant, name=name, environment="tools", state="done", reason="", priority=0, step=2, steps=2,
        reward=None, score=None, best=None, floor=None, adapter_version="", staleness=None, tokens=0, seconds=0.0,
        created=100.0, started=100.0, finished=finished,
    )  # fmt: skip
    steps = tuple(StepRow(n, finished - 2 + n, 1.0, {"staleness": age, "tokens": 50.0}) for n in (1, 2))
    return TaskRun(row, steps, tuple(EvalRow(10 * n, "v", score, 0.0, 8, None, {}) for n, score in enumerate(scores)))


def run(*tasks: TaskRun, usage: Usage = USAGE) -> FleetRun:
    return FleetRun(100.0, tasks, usage)


def arm(*seconds: float) -> list[FleetRun]:
    return [run(task("a", 100.0 + each), usage=replace(USAGE, wall=each)) for each in seconds]


# concurrency


def test_a_task_of_a_sequence_counts_from_the_last_ones_end() -> None:
    sequence = run(task("second", 109.0), task("first", 104.0))
    assert sequence.makespan == pytest.approx(9.0)
    assert sequence.turns() == {"first": pytest.approx(4.0), "second": pytest.approx(5.0)}


def test_no_schedule_beats_the_longest_task_or_the_cores() -> None:
    cores = len(all_cores())
    assert concurrency.bound(7.0, 2.0 * cores) == 7.0
    assert concurrency.bound(1.0, 5.0 * cores) == 5.0


def test_workloads_are_tasks_of_four_tenants() -> None:
    for name in ("concurrency", "compute_mix"):
        tasks = load(name).tasks
        assert len(tasks) == len({each.name for each in tasks}) == 32
        assert len({each.tenant for each in tasks}) == 4 and all(each.sampling.max_tokens == 8 for each in tasks)
    assert {each.environment_config["tool"] for each in load("concurrency").calling("h:1").tasks} == {"h:1"}
    assert [each.steps for each in load("concurrency").part(3, 2).tasks] == [2, 2, 2]


def test_the_slowest_tasks_are_those_of_the_sequence() -> None:
    workload = load("concurrency").part(3, 2)
    names = [each.name for each in workload.tasks]
    sequence = run(task(names[0], 101.0), task(names[1], 109.0), task(names[2], 111.0))
    assert [each.name for each in concurrency.slowest(workload, sequence, 2)] == [names[1], names[2]]


def test_either_idea_is_set_against_the_other() -> None:
    arms = {
        concurrency.STALE_TOGETHER: arm(5.0, 4.0),
        concurrency.LLAMA: arm(6.0, 8.0),
        concurrency.TOGETHER: arm(10.0, 8.0),
        concurrency.STALE_SEQUENCE: arm(50.0),
        concurrency.SEQUENCE: arm(100.0),
    }
    alone = {concurrency.DEFAULTS: 4.0, concurrency.LLAMA: 100.0}
    rows = list(concurrency.compared(load("concurrency"), arms, alone))
    what = "32 tasks, from submission to the end of the last"
    ratios = {
        (row.what.removeprefix(what), row.other): row.ratio.values for row in rows if row.ratio and what in row.what
    }
    assert ratios == {
        (", shipped defaults", concurrency.SEQUENCE): (20.0, 25.0),
        (f", {concurrency.TOGETHER}", concurrency.SEQUENCE): (10.0, 12.5),
        (f", {concurrency.STALE_SEQUENCE}", concurrency.SEQUENCE): (2.0,),
        (", shipped defaults", concurrency.TOGETHER): (2.0, 2.0),
        (", shipped defaults", concurrency.STALE_SEQUENCE): (10.0, 12.5),
        (f", {concurrency.LLAMA}", concurrency.STALE_TOGETHER): (5 / 6, 0.5),
    }
    named = {row.what.removesuffix(", shipped defaults"): row.ours.values for row in rows}
    assert named["time saved"] == pytest.approx((95.0, 96.0))
    least = max(4.0, USAGE.compute / len(all_cores()))
    assert named["makespan ÷ bound, processor time as used at once"] == pytest.approx((5 / least, 4 / least))
    busiest = max(USAGE.spent.values()) / least
    assert named["processor time of the busiest stage ÷ bound"] == pytest.approx((busiest,) * 2)
    with_llama = f"makespan ÷ bound, processor time as used at once, {concurrency.LLAMA}"
    assert named[with_llama] == pytest.approx((0.06, 0.08))


def test_compute_is_set_against_the_cores_by_either_count() -> None:
    ours, theirs = [run(task("a", 105.0))], [run(task("a", 109.0), usage=replace(USAGE, spent={"rollout": 5.0}))]
    rows = concurrency.mix_rows(load("compute_mix"), ours, theirs)
    assert rows[0].ratio is not None and rows[0].ratio.middle == pytest.approx(9 / 5)
    assert rows[1].ours.middle == pytest.approx(len(all_cores()) * 5.0 / USAGE.compute)
    assert rows[2].ours.middle == pytest.approx(len(all_cores()) * 5.0 / 5.0)
    assert rows[3].ratio is not None and rows[3].ratio.middle == pytest.approx(5.0 / USAGE.compute)


def test_a_table_shows_the_cores_of_every_stage() -> None:
    text = concurrency.utilisation({"here": [run(task("a", 105.0))]}, "Busy.")
    assert "| here, 1 | 0.600 | 0.300 | 0.050 | 0.050 | 1.000 |" in text


def test_a_quiet_machine_needs_no_words() -> None:
    assert disturbed(0.1) == ""
    assert "up to 0.60 of the cores" in disturbed(0.6)


def test_every_arm_is_set_against_both_ways_to_run_trl() -> None:
    waits = {eight_tasks.IN_SEQUENCE: [60.0], eight_tasks.IN_PARALLEL: [50.0]}
    waits |= {name: [10.0] for name in eight_tasks.OURS}
    rows = eight_tasks.rows({eight_tasks.Case(8, 20, 1): waits})
    assert [row.ratio.middle for row in rows if row.ratio] == [6.0, 5.0] * len(eight_tasks.OURS)


# scaling


def test_steps_count_while_all_tasks_run() -> None:
    ends = [[1.0, 2.0, 3.0, 4.0, 5.0], [1.5, 2.5, 3.5, 4.5, 5.5]]
    assert scaling.steady_rate(ends) == pytest.approx(5 / 2.5), "after 2.5, when both have made two, until 5.0"
    apart = [[1.0, 2.0, 3.0], [11.0, 12.0, 13.0]]
    assert scaling.steady_rate(apart) == pytest.approx(5 / 12)


def test_scaling_has_a_row_for_every_number_and_figure() -> None:
    found = {count: [scaling.Scale(count, run(task("a", 105.0), task("b", 105.5)))] for count in (1, 4)}
    assert len(scaling.rows(found)) == 2 * 4
    assert "| 4 | 200 | 0.60 |" in scaling.remarks(found)
    (curve,) = scaling.picture(found).curves
    assert curve.x == (1.0, 4.0) and curve.middle == (1.0, 1.0), "both were given the same run"


def test_tasks_of_scaling_differ_by_seed_and_tenant() -> None:
    tasks = scaling.tasks_of(8, 40)
    assert len({each.train.seed for each in tasks}) == len({each.name for each in tasks}) == 8
    assert len({each.tenant for each in tasks}) == 4 and {each.steps for each in tasks} == {40}


# staleness


def test_an_interval_is_students() -> None:
    low, mean, high = learned.interval([1.0, 2.0, 3.0, 4.0, 5.0]).values
    assert mean == pytest.approx(3.0)
    assert high - mean == pytest.approx(mean - low) == pytest.approx(2.776 * (2.5**0.5) / 5**0.5)


def test_staleness_is_compared_seed_by_seed() -> None:
    found = run(
        *(
            task(f"seed {n}", 105.0, f"staleness {bound}", (0.25, 0.8 + 0.1 * n + 0.01 * bound * n), bound / 2)
            for n in (0, 1)
            for bound in (0, 4)
        )
    )
    rows = staleness.rows(found, (0, 4))
    assert rows[0].ours.middle == pytest.approx(25.0)
    assert rows[-1].ours.middle == pytest.approx(2.0), "0 and 4 points"
    assert "0.00 at 0, 2.00 at 4" in staleness.remarks(found, (0, 4))


def test_a_score_is_the_same_if_its_interval_is_near_0() -> None:
    def verdict(*points: float) -> str:
        return staleness.verdict(learned.difference("staleness 2 − staleness 0", points, [0.0] * len(points)))

    assert verdict(-0.5, 0.0, 0.5) == "at staleness 2 the interval lies within ±2 points"
    assert "lies outside" in verdict(-7.0, -7.5, -8.0)
    assert "reaches beyond" in verdict(-6.0, 0.0, 6.0)


def test_rewards_are_drawn_with_their_interval() -> None:
    def seed(number: int, reward: float) -> TaskRun:
        made = task(f"seed {number}", 105.0, "staleness 2")
        steps = tuple(replace(step, metrics={**step.metrics, "reward": reward * step.step}) for step in made.steps)
        return TaskRun(made.row, steps, made.evals)

    shown = staleness.picture(run(*(seed(n, 0.1 * (n + 1)) for n in range(5))), (2,))
    (curve,) = shown.curves
    assert curve.x == (1.0, 2.0) and curve.middle == pytest.approx((30.0, 60.0))
    assert curve.middle[0] - curve.low[0] == pytest.approx(2.776 * 250**0.5 / 5**0.5)


# quality


def both(better: float) -> FleetRun:
    """Two seeds of each environment; the second learns ``better`` more than the first, in percent."""
    return run(
        *(
            task(f"{name}, seed {seed}", 105.0, name, (0.3, 0.4, 0.5 + place / 10 + seed * better / 100))
            for seed in (0, 1)
            for place, name in enumerate(ENVIRONMENTS)
        )
    )


def test_arms_are_compared_seed_by_seed() -> None:
    rows: dict[str, Row] = {row.what: row for row in quality.rows(both(4.0), both(2.0))}
    assert quality.ends(both(4.0), SUMS) == pytest.approx((50.0, 54.0))
    whole = rows["held-out score, mean of all tasks, at once"]
    assert whole.theirs is not None
    assert whole.ours.middle == pytest.approx(67.0) and whole.theirs.middle == pytest.approx(66.0)
    low, mean, high = rows["sums, at once − alone: mean and 95 % interval"].ours.values
    assert mean == pytest.approx(1.0) and high - mean == pytest.approx(12.706)  # of 0 and 2
    pooled = rows["all environments, at once − alone: mean and 95 % interval"].ours
    assert pooled.values[1] == pytest.approx(1.0)
    assert pooled.values[2] - pooled.values[0] < high - low, "eight pairs say more than two"
    assert rows["held-out score after 20 steps, guess, at once"].ours.values[1] == pytest.approx(62.0)
    assert rows["held-out score, untrained, guess"].ours.middle == pytest.approx(30.0)
    assert all(row.noise == 0.0 for what, row in rows.items() if " after " in what)


def test_a_run_without_a_score_is_named() -> None:
    failed = task("sums, seed 0", 105.0, scores=(0.5,))
    failed = replace(failed, evals=(replace(failed.evals[0], score=None, failures=9),))
    with pytest.raises(RuntimeError, match="9 held-out episodes failed at step 0 of sums, seed 0"):
        learned.scores(failed)


def test_trl_is_compared_with_as_many_seeds_as_it_ran() -> None:
    rows = list(quality.against([50.0, 52.0], {"at once": (51.0, 55.0, 90.0)}))
    assert rows[0].ours.values == (53.0,) and rows[0].ratio is not None and rows[0].ratio.middle == 53 / 51
    assert rows[1].ours.values[1] == pytest.approx(2.0) and "sums, at once − TRL" in rows[1].what
    everything = [*quality.rows(both(4.0), both(2.0)), *rows]
    picks = [pick for pick in pages.PICKS if pick.section == "quality"]
    assert picks and all((row := pick.of(everything)) and row.theirs for pick in picks)


def test_tasks_of_quality_are_valid_and_differ_by_seed() -> None:
    tasks = quality.tasks(QUICK, tuple(ENVIRONMENTS), 2)
    assert len(tasks) == QUICK.seeds * len(ENVIRONMENTS)
    assert [parse(each.to_json(), "task") for each in tasks] == tasks
    first, second = (each for each in tasks if each.tenant == "guess")
    assert replace(second, name=first.name, train=first.train) == first
    assert (first.train.seed, second.train.seed) == (0, 1)


def test_each_seed_has_rows_of_its_own(tmp_path: Path) -> None:
    home = Home(tmp_path)
    home.plugins.mkdir()
    quality.prepare(replace(QUICK, seeds=2, steps=2, prompts=3), home)
    assert (home.plugins / "reverse_words.py").exists()
    train, held = ((home.plugins / "sums_0" / name).read_text().splitlines() for name in ("train.jsonl", "eval.jsonl"))
    assert len(train) == 2 * SHORT.groups and len(held) == 3 and not set(train) & set(held)
    assert train != (home.plugins / "sums_1" / "train.jsonl").read_text().splitlines()
    assert json.loads(held[0])["answer"] and (home.plugins / "sums_0" / "grading.py").exists()


# trajectories


async def test_a_batch_goes_on_with_its_slowest() -> None:
    batch = waiting.Batch(3)
    arrived = [asyncio.ensure_future(batch.arrive(0)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in arrived)
    await asyncio.wait_for(batch.arrive(0), 1)
    await asyncio.wait_for(asyncio.gather(*arrived), 1)


async def test_a_batch_does_not_wait_for_who_has_left() -> None:
    batch = waiting.Batch(3)
    await asyncio.wait_for(asyncio.gather(*(batch.arrive(0) for _ in range(3))), 1)
    second = [asyncio.ensure_future(batch.arrive(1)) for _ in range(2)]
    await asyncio.sleep(0)
    assert not any(each.done() for each in second)
    batch.leave(1)
    await asyncio.wait_for(asyncio.gather(*second), 1)
    batch.leave(2)
    await asyncio.wait_for(batch.arrive(2), 1)


def test_tools_take_their_mean_and_fail_as_often_as_asked() -> None:
    draw = Random(1)
    waits = waiting.latencies(draw, 20_000, 0.5, 1.0)
    assert sum(waits) / len(waits) == pytest.approx(0.5, rel=0.05)  # 0.009 standard errors of the mean
    fates = [waiting.fate(draw, 4, 0.2) for _ in range(5_000)]
    failed = [turn for turn, _ in fates if turn < 4]
    assert len(failed) == pytest.approx(1_000, rel=0.1) and set(failed) == set(range(4))
    assert sum(hangs for _, hangs in fates) == pytest.approx(500, rel=0.15)


def test_arms_differ_in_what_they_are_named_for() -> None:
    specs = {each: trajectories.task(Situation(0.3), each, Scale(), "x") for each in ARMS}
    assert {each: (spec.train.max_staleness, spec.train.redundant) for each, spec in specs.items()} == {
        BATCH: (0, 0), ALONE: (0, 0), FIRST: (0, 2), STALE: (2, 0), ALL: (2, 2),
    }  # fmt: skip
    batches = {each: spec.environment_config["batch"] for each, spec in specs.items()}
    assert batches == {each: specs[each].group_episodes * (each == BATCH) for each in ARMS}
    sigma = specs[ALONE].environment_config["sigma"]
    assert sigma == pytest.approx(0.5545, abs=1e-4)  # the root of ln(1 + (0.3 / 0.5)²)


def test_rows_set_each_arm_beside_the_batch() -> None:
    """Tasks begin at 100 s and have two steps."""
    ends = dict(zip(ARMS, (112.0, 108.0, 106.0, 104.0, 103.0), strict=True))
    made = trajectories.by_arm(run(*(task(each.name, end) for each, end in ends.items())))
    assert trajectories.pace(made[BATCH]) == 6.0
    situation = Situation(0.3, scored=True)
    scored = {
        each: replace(found, evals=(EvalRow(2, "v", TARGET, 0.0, 8, None, {}, created=ends[each]),))
        for each, found in made.items()
    }
    rows = {(row.what, row.other): row.ratio for row in trajectories.rows({situation: [scored]})}
    alone = rows["a step, deviation 0.3 s: each episode by itself", BATCH.name]
    assert alone is not None and alone.middle == pytest.approx(12 / 8)
    first = rows[f"a step, deviation 0.3 s: {FIRST.name}", ALONE.name]
    assert first is not None and first.middle == pytest.approx(8 / 6)
    score = rows[f"to a held-out score of 80%, deviation 0.3 s: {STALE.name}", BATCH.name]
    assert score is not None and score.middle == pytest.approx(12 / 4)
    with pytest.raises(RuntimeError, match="did not reach"):
        trajectories.to_score(task("slow", 110.0))


# weight_sync


@pytest.fixture
def as_shipped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What the other ways replace is put back at the end."""
    monkeypatch.setattr(PolicyLearner, "_step", PolicyLearner._step)
    monkeypatch.setattr(Canary, "probe", Canary.probe)
    monkeypatch.setattr(PublishedVersions, "_load_at", PublishedVersions._load_at)


@pytest.mark.usefixtures("as_shipped")
async def test_without_a_canary_nothing_is_compared() -> None:
    closed = group(3)
    assert Canary({}, 1.0).probe([closed])
    sync_engine.take(UNCHECKED, 0.0)
    canary = Canary({}, 1.0)
    assert canary.probe([closed]) is None
    asked = canary.ask({"rollout"})
    assert not asked.chosen and not asked.renewed and asked.trained.done()


@pytest.mark.usefixtures("as_shipped")
async def test_blocking_waits_and_counts_it(monkeypatch: pytest.MonkeyPatch) -> None:
    learner, now = PolicyLearner.__new__(PolicyLearner), [0.0]
    learner.groups = PolicyGroups.__new__(PolicyGroups)
    learner.groups.exposed = ExposedTime(lambda: now[0])
    made: Any = "the version"

    async def make(self: PolicyLearner, *_: Any) -> Any:
        return made

    async def settled(self: PolicyLearner) -> None:
        now[0] = 3.0

    monkeypatch.setattr(PolicyLearner, "_step", make)
    monkeypatch.setattr(PolicyLearner, "settled", settled)
    sync_engine.take(BLOCKING, 0.0)
    nothing: Any = None
    assert await learner._step(0, nothing, nothing) == made
    assert learner.groups.exposed.take()["publish_wait_seconds"] == 3.0


@pytest.mark.usefixtures("as_shipped")
async def test_a_delay_comes_before_a_version_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    order: list[object] = []

    async def load(self: PublishedVersions, endpoint: Any, version: Any) -> None:
        order.append(endpoint)

    async def sleep(seconds: float) -> None:
        order.append(seconds)

    monkeypatch.setattr(PublishedVersions, "_load_at", load)
    sync_engine.take(OVERLAPPED, 0.1)
    monkeypatch.setattr(asyncio, "sleep", sleep)
    endpoint: Any = "rollout"
    version: Any = None
    await PublishedVersions({})._load_at(endpoint, version)
    assert order == [0.1, "rollout"]


def test_a_step_is_timed_after_the_first_ones() -> None:
    waits = {"publish_wait_seconds": 0.3, "begin_wait_seconds": 0.1}
    first = {"publish_wait_seconds": 9.0, "begin_wait_seconds": 9.0}
    steps = tuple(StepRow(n, 100.0 + 2 * n, 2.0, waits if n > 2 else first) for n in range(1, 6))
    found = weight_sync.timed(run(replace(task("a", 110.0), steps=steps)), 2)
    assert (found.step, found.publish, found.begin) == pytest.approx((2.0, 0.3, 0.1))
    assert found.exposed == pytest.approx(20.0)


def test_each_way_stands_beside_the_shipped_one() -> None:
    times = {OVERLAPPED: 0.1, BLOCKING: 0.15, UNCHECKED: 0.09}
    found = {case: [Timed(times[case.way] + case.delay, 0.001, 0.0, 0.0)] * 2 for case in weight_sync.cases(False)}
    rows = {(row.what, row.other): row for row in weight_sync.rows(found)}
    beside = rows["a step: the shipped base, torch, staleness 2, 0 ms of delay", BLOCKING]
    assert beside.ratio and beside.ratio.values == pytest.approx((1.5, 1.5))
    assert rows["a step: the shipped base, llama.cpp, staleness 0, 0 ms of delay", UNCHECKED].theirs
    exposed = rows["exposed: the shipped base, torch, staleness 0, 0 ms of delay, overlapped, as shipped", ""]
    assert exposed.ours.middle == pytest.approx(1.0) and exposed.goal == weight_sync.GOAL
    assert [curve.x for curve in weight_sync.picture(found).curves] == [(0.0, 10.0, 100.0)] * 3
    assert "without a canary" in weight_sync.remarks(found)
    assert weight_sync.task(Case("llama.cpp", 2, base="somewhere"), 5).environment == "babble"
