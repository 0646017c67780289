"""What the quality benchmark reads off its runs; nothing runs here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.beside_trl.workload import SHORT
from benchmarks.machinery.fleet import FleetRun
from benchmarks.many_tasks import learned, quality
from benchmarks.many_tasks.quality import ENVIRONMENTS, QUICK, SUMS
from benchmarks.report import headline, tables
from benchmarks.report.figures import Row, Section
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import parse

from . import runs


def arm(better: float) -> dict[str, FleetRun]:
    """Two seeds of each environment; the second learns ``better`` more than the first, in percent."""
    tasks = [
        runs.learned(name, f"{name}, seed {seed}", (0.3, 0.4, 0.5 + place / 10 + seed * better / 100))
        for seed in (0, 1)
        for place, name in enumerate(ENVIRONMENTS)
    ]
    return quality.by_environment(runs.together(*tasks))


def found() -> dict[str, Row]:
    return {row.what: row for row in quality.rows(QUICK, arm(4.0), arm(2.0))}


def test_environments_are_told_apart_in_order_of_seeds() -> None:
    assert list(arm(4.0)) == list(ENVIRONMENTS)
    assert quality.ends(arm(4.0)[SUMS]) == pytest.approx((50.0, 54.0))


def test_arms_are_compared_seed_by_seed() -> None:
    rows = found()
    whole = rows["held-out score, mean of all tasks, at once"]
    assert whole.theirs is not None
    assert whole.ours.middle == pytest.approx(67.0) and whole.theirs.middle == pytest.approx(66.0)
    low, mean, high = rows["sums, at once − alone: mean and 95 % interval"].ours.values
    assert mean == pytest.approx(1.0) and high - mean == pytest.approx(12.706)  # of 0 and 2
    pooled = rows["all environments, at once − alone: mean and 95 % interval"].ours
    assert pooled.values[1] == pytest.approx(1.0)
    assert pooled.values[2] - pooled.values[0] < high - low, "eight pairs say more than two"


def test_curves_have_a_row_for_each_measured_step() -> None:
    rows = found()
    assert rows["held-out score after 20 steps, guess, at once"].ours.values[1] == pytest.approx(62.0)
    assert rows["held-out score, untrained, guess"].ours.middle == pytest.approx(30.0)
    assert all(row.noise == 0.0 for what, row in rows.items() if " after " in what)


def test_a_run_without_a_score_is_named() -> None:
    failed = runs.learned("sums", "sums, seed 0", (0.5,))
    failed = replace(failed, evals=(replace(failed.evals[0], score=None, failures=9),))
    with pytest.raises(RuntimeError, match="9 held-out episodes failed at step 0 of sums, seed 0"):
        learned.scores(failed)


def test_trl_is_compared_with_as_many_seeds_as_it_ran() -> None:
    rows = list(quality.against([50.0, 52.0], {"at once": (51.0, 55.0, 90.0)}))
    assert rows[0].ours.values == (53.0,) and rows[0].ratio is not None and rows[0].ratio.middle == 53 / 51
    assert rows[1].ours.values[1] == pytest.approx(2.0)
    table = tables.table(Section("quality", "", "", tuple(rows)))
    assert "sums, at once − TRL" in table


def test_the_headline_picks_rows_that_there_are() -> None:
    rows = [*found().values(), *quality.against([50.0, 52.0], {"at once": (51.0, 55.0)})]
    picks = [pick for pick in headline.PICKS if pick.section == "quality"]
    assert picks and all((row := pick.of(rows)) and row.theirs for pick in picks)


def test_tasks_are_valid_and_differ_by_seed_alone() -> None:
    tasks = quality.tasks(QUICK, tuple(ENVIRONMENTS), 2)
    assert len(tasks) == QUICK.seeds * len(ENVIRONMENTS)
    assert [parse(task.to_json(), "task") for task in tasks] == tasks
    first, second = (task for task in tasks if task.tenant == "guess")
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


def test_what_is_missing_is_said() -> None:
    words = quality.remarks(runs.together(*arm(1.0)[SUMS].tasks), runs.together(*arm(1.0)[SUMS].tasks), "no pip.")
    assert "100 s at once" in words and "TRL is not beside it: no pip." in words
