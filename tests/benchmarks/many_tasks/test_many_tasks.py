"""What the benchmarks of many tasks read off their runs; nothing runs here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.beside_trl import eight_tasks
from benchmarks.machinery.cores import all_cores, disturbed
from benchmarks.machinery.fleet import FleetRun, TaskRun
from benchmarks.machinery.meter import Usage
from benchmarks.many_tasks import at_once, compute_mix, concurrency, credit, scaling, staleness
from benchmarks.many_tasks.workload import load
from benchmarks.report import tables
from benchmarks.report.figures import Series
from marlaas.engine.store.queries.machine import StageSample
from marlaas.engine.store.rows import EvalRow, StepRow, TaskRow

USAGE = Usage(10.0, {"rollout": 6.0, "training": 3.0, "engine": 0.5, "env": 0.5}, {"rollout": 200.0}, 0.05)


def task(name: str, finished: float, tenant: str = "lab", score: float = 0.5, age: float = 1.0) -> TaskRun:
    row = TaskRow(
        id=1, tenant=tenant, name=name, environment="tools", state="done", reason="", priority=0, step=2, steps=2,
        reward=None, score=None, best=None, floor=None, adapter_version="", staleness=None, tokens=0, seconds=0.0,
        created=100.0, started=100.0, finished=finished,
    )  # fmt: skip
    steps = tuple(StepRow(n, finished - 2 + n, 1.0, {"staleness": age, "tokens": 50.0}) for n in (1, 2))
    evals = tuple(EvalRow(step, "v", value, 0.0, 8, None, {}) for step, value in ((0, 0.25), (2, score)))
    return TaskRun(row, steps, evals)


def run(*tasks: TaskRun, usage: Usage = USAGE) -> FleetRun:
    return FleetRun(100.0, tasks, usage)


def test_a_task_of_a_sequence_counts_from_the_last_ones_end() -> None:
    sequence = run(task("second", 109.0), task("first", 104.0))
    assert sequence.makespan == pytest.approx(9.0)
    assert sequence.turns() == {"first": pytest.approx(4.0), "second": pytest.approx(5.0)}


def test_no_schedule_beats_the_longest_task_or_the_cores() -> None:
    cores = len(all_cores())
    assert at_once.bound(7.0, 2.0 * cores) == 7.0
    assert at_once.bound(1.0, 5.0 * cores) == 5.0


def test_the_slowest_tasks_are_those_of_the_sequence() -> None:
    workload = load("concurrency").part(3, 2)
    names = [one.name for one in workload.tasks]
    sequence = run(task(names[0], 101.0), task(names[1], 109.0), task(names[2], 111.0))
    assert [one.name for one in at_once.slowest(workload, sequence, 2)] == [names[1], names[2]]


def test_either_idea_is_set_against_the_other() -> None:
    def arm(*seconds: float) -> list[FleetRun]:
        return [run(task("a", 100.0 + each), usage=replace(USAGE, wall=each)) for each in seconds]

    arms = {
        concurrency.STALE_TOGETHER: arm(5.0, 4.0),
        concurrency.LLAMA: arm(6.0, 8.0),
        concurrency.TOGETHER: arm(10.0, 8.0),
        concurrency.STALE_SEQUENCE: arm(50.0),
        concurrency.SEQUENCE: arm(100.0),
    }
    lone = {concurrency.DEFAULTS: 4.0, concurrency.LLAMA: 100.0}
    rows = list(concurrency.rows(load("concurrency"), arms, lone))
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
    named = {row.what.removesuffix(", shipped defaults"): row for row in rows}
    assert named["time saved"].ours.values == pytest.approx((95.0, 96.0))
    least = max(4.0, USAGE.compute / len(all_cores()))
    assert named["makespan ÷ bound, processor time as used at once"].ours.values == pytest.approx(
        (5 / least, 4 / least)
    )
    busiest = named["processor time of the busiest stage ÷ bound"].ours.values
    assert busiest == pytest.approx((max(USAGE.spent.values()) / least,) * 2)
    with_llama = named[f"makespan ÷ bound, processor time as used at once, {concurrency.LLAMA}"]
    assert with_llama.ours.values == pytest.approx((0.06, 0.08))
    used = named[f"share of the cores' time that is used, {concurrency.STALE_TOGETHER}"]
    assert used.ratio is not None and used.ratio.values == pytest.approx((20.0, 25.0))
    assert concurrency.remarks(arms).count("staleness 2, ") == 3


def test_the_picture_shows_the_first_seconds_of_each_arm() -> None:
    samples = tuple(
        StageSample(stage, "cpu", 99.5 + n, 1.0, 0.5, 0.0, 0.0, 0) for n in range(40) for stage in ("rollout", "engine")
    )
    bars = concurrency.bars(replace(run(task("a", 140.0)), samples=samples))
    assert {bar.lane for bar in bars} == {"rollout", "engine"}
    assert min(bar.start for bar in bars) == 0.5 and max(bar.end for bar in bars) == concurrency.WINDOW
    assert {bar.share for bar in bars} == {0.5}


def test_compute_is_set_against_the_cores_by_either_count() -> None:
    ours, theirs = [run(task("a", 105.0))], [run(task("a", 109.0), usage=replace(USAGE, spent={"rollout": 5.0}))]
    rows = compute_mix.rows(load("compute_mix"), ours, theirs)
    assert rows[0].ratio is not None and rows[0].ratio.middle == pytest.approx(9 / 5)
    assert rows[1].ours.middle == pytest.approx(len(all_cores()) * 5.0 / USAGE.compute)
    assert rows[2].ours.middle == pytest.approx(len(all_cores()) * 5.0 / 5.0)
    assert rows[3].ratio is not None and rows[3].ratio.middle == pytest.approx(5.0 / USAGE.compute)


def test_a_table_shows_the_cores_of_every_stage() -> None:
    text = at_once.utilisation({"here": run(task("a", 105.0))})
    assert "| here | 0.600 | 0.300 | 0.050 | 0.050 | 1.000 |" in text


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


def test_an_interval_is_students() -> None:
    low, mean, high = staleness.interval([1.0, 2.0, 3.0, 4.0, 5.0]).values
    assert mean == pytest.approx(3.0)
    assert high - mean == pytest.approx(mean - low) == pytest.approx(2.776 * (2.5**0.5) / 5**0.5)


def test_staleness_is_compared_seed_by_seed() -> None:
    tasks = [
        task(f"seed {seed}", 105.0, f"staleness {bound}", 0.8 + 0.1 * seed + 0.01 * bound * seed, bound / 2)
        for seed in (0, 1)
        for bound in (0, 4)
    ]
    rows = staleness.rows(staleness.by_bound(run(*tasks)))
    assert rows[0].ours.middle == pytest.approx(25.0)
    assert rows[-1].ours.middle == pytest.approx(2.0), "0 and 4 points"
    assert "0.00 at 0, 2.00 at 4" in staleness.remarks(run(*tasks), (0, 4))


def test_a_score_is_kept_where_its_interval_is_near_0() -> None:
    def apart(*points: float) -> dict[int, list[tuple[float, float]]]:
        return {0: [(5.0, 60.0)] * len(points), 2: [(5.0, 60.0 + each) for each in points]}

    assert "at staleness 2 the interval lies within ±2 points" in staleness.verdicts(apart(-0.5, 0.0, 0.5))
    assert "at staleness 2 it lies outside" in staleness.verdicts(apart(-7.0, -7.5, -8.0))
    assert "at staleness 2 it reaches beyond" in staleness.verdicts(apart(-6.0, 0.0, 6.0))


def test_rewards_are_drawn_with_their_interval() -> None:
    def seed(number: int, reward: float) -> TaskRun:
        one = task(f"seed {number}", 105.0, "staleness 2")
        steps = tuple(replace(step, metrics={**step.metrics, "reward": reward * step.step}) for step in one.steps)
        return TaskRun(one.row, steps, one.evals)

    shown = staleness.picture(run(*(seed(n, 0.1 * (n + 1)) for n in range(5))), (2,))
    (curve,) = shown.curves
    assert curve.x == (1.0, 2.0) and curve.middle == pytest.approx((30.0, 60.0))
    assert curve.middle[0] - curve.low[0] == pytest.approx(2.776 * 250**0.5 / 5**0.5)


def test_every_arm_is_set_against_both_ways_to_run_the_other() -> None:
    waits = {
        eight_tasks.IN_SEQUENCE: [60.0],
        eight_tasks.IN_PARALLEL: [50.0],
        **{name: [10.0] for name in eight_tasks.OURS},
    }
    rows = eight_tasks.rows({eight_tasks.Case(8, 20, 1): waits})
    assert [row.ratio.middle for row in rows if row.ratio] == [6.0, 5.0] * len(eight_tasks.OURS)


def test_a_figure_that_was_taken_once_has_no_spread() -> None:
    assert tables.spread(Series((5.0, 5.0))) == "5.00"
    assert tables.spread(Series((5.0, 6.0, 7.0))) == "6.00 [5.00–7.00]"


def test_a_quiet_machine_needs_no_words() -> None:
    assert disturbed(0.1) == ""
    assert "up to 0.60 of the cores" in disturbed(0.6)


def test_ways_to_give_credit_are_compared_seed_by_seed() -> None:
    tasks = [task(str(n), 105.0, tenant=arm.name, score=0.3 + 0.01 * n + 0.1 * m)
             for n in range(5) for m, arm in enumerate(credit.ARMS)]  # fmt: skip
    rows = {row.what: row.ours for row in credit.rows(credit.by_arm(run(*tasks)))}
    assert rows["held-out score, untrained"].middle == 25.0
    assert rows["held-out score at the end, turn"].values == pytest.approx((40.0, 41.0, 42.0, 43.0, 44.0))
    assert rows["turn − episode, at the end: mean and 95 % interval"].values == pytest.approx((10.0, 10.0, 10.0))
    assert rows["turn, discount 0 − episode, mean of all evaluations: mean and 95 % interval"].middle == pytest.approx(
        20
    )
