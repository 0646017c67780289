"""What the benchmark of quantised rollouts reads off its runs; nothing runs here."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.machinery.fleet import TaskRun
from benchmarks.many_tasks import quantised
from benchmarks.many_tasks.quantised import ARMS, EXACT, HALF, TRAINED, UNWEIGHTED, Arm
from benchmarks.report import headline
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.spec.task import parse

from . import runs


def trained(arm: Arm) -> list[TaskRun]:
    """Two seeds, of which quantised ones end two and four points lower, in half of the time."""
    less, seconds = (0.0, 2.0) if arm is EXACT else (0.02, 1.0)
    return [
        runs.learned(arm.name, f"seed {seed}", (0.4, 0.6, 0.8 - less * (seed + 1)), (0.4, 0.5, 0.6), seconds)
        for seed in (0, 1)
    ]


def test_arms_stand_beside_f32_seed_by_seed() -> None:
    rows = {row.what: row for row in quantised.rows(TRAINED, {arm: trained(arm) for arm in ARMS})}
    speed = rows["trained base: a step, q8_0"]
    assert speed.ratio is not None and speed.ratio.values == (2.0, 2.0)
    assert rows["trained base: a step, f32"].theirs is None
    low, mean, high = rows["trained base: q8_0 − f32, at the end: mean and 95 % interval"].ours.values
    assert mean == pytest.approx(-3.0) and low < -3.0 < high
    assert rows["held-out score after 20 steps, trained base, q8_0"].ours.values[1] == pytest.approx(77.0)


def test_points_an_hour_count_the_steps_that_were_made() -> None:
    run = trained(EXACT)[0]
    assert quantised.step_seconds(run) == 2.0
    assert quantised.gain_per_hour(TRAINED, run) == pytest.approx(3600 * 40 / (3 * 2.0))
    # the reward of the third step is that of the second version
    assert quantised.gain_per_hour(HALF, run) == pytest.approx(3600 * 20 / (2 * 2.0))


def test_rewards_are_those_of_the_version_that_sampled() -> None:
    rows = {row.what: row for row in quantised.rows(HALF, {arm: trained(arm) for arm in ARMS})}
    assert rows["reward after 2 steps, 0.5 B shape, f32"].ours.values[1] == pytest.approx(60.0)
    assert "reward after 1 step, 0.5 B shape, f32" in rows and "reward after 3 steps, 0.5 B shape, f32" not in rows
    (pick,) = (pick for pick in headline.PICKS if pick.section == "quantised")
    assert (row := pick.of(list(rows.values()))) and row.theirs


def test_remarks_say_how_far_apart_both_are() -> None:
    text = quantised.remarks({EXACT: trained(EXACT)}, {UNWEIGHTED: trained(UNWEIGHTED)})
    assert "| 0.5 B shape | q4_k_m, importance weights off | 0.25 | 1.5 | 2.00% | 1.010 | 90.0% |" in text


def test_a_home_gets_files_and_rows_before_its_engine_starts(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    for folder in (tmp_path / "base-gguf", home.base, home.plugins):
        folder.mkdir(parents=True)
    (tmp_path / "base-gguf" / "0-q8_0.gguf").write_bytes(b"GGUF")
    for case, rows in ((TRAINED, False), (HALF, True)):
        quantised.prepare(case, tmp_path / "base-gguf", home)
        assert (home.base / "0-q8_0.gguf").read_bytes() == b"GGUF"
        assert (home.plugins / "letters" / "train.jsonl").exists() is rows
        (home.base / "0-q8_0.gguf").unlink()


@pytest.mark.parametrize("arm", [*ARMS, UNWEIGHTED], ids=lambda arm: arm.name)
def test_tasks_and_settings_are_valid(tmp_path: Path, arm: Arm) -> None:
    for case in (TRAINED, HALF, *quantised.QUICK):
        task = case.task(1, arm)
        assert parse(task.to_json(), "task") == task and task.train.importance == arm.importance
        home = Home(tmp_path)
        home.config.write_text(quantised.settings(case, tmp_path / "base", arm.weights))
        assert load_settings(home).rollout.weights == arm.weights
