"""What the comparison with TRL reads off its runs; neither side runs here."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.beside_trl import tables, workload as fixed
from benchmarks.beside_trl.runs import OURS, THEIRS, Case, Results, Run
from benchmarks.beside_trl.workload import LONG, SHORT
from benchmarks.machinery.cores import Reading, used_by_others
from benchmarks.plugins.sums.grading import reward
from marlaas.engine.queue.submission import taskfile
from marlaas.engine.trainer.protocol import PolicyConfig


def run(step: float, steps: int, rewards: float = 0.5, start: float = 5.0) -> Run:
    ends = [100.0 + start + step * number for number in range(steps)]
    return Run(100.0, ends, [rewards] * steps, [6.0] * steps, {"rollout": 0.5, "training": 1.0}, 0.1, 0.04)


def results(steps: int = 40, repetitions: int = 5, cores: tuple[int, ...] = (0, 1)) -> Results:
    found = Results(Case(SHORT, cores, steps, 10, repetitions, "3 ×"))
    for number in range(repetitions):
        found.add(THEIRS, run(0.2, steps, 0.4 + number / 100))
        for arm in OURS:
            found.add(arm, run(0.05, steps + 2, 0.43, start=3.0))
    return found


def test_steps_count_after_warm_up_and_waiting_from_the_start() -> None:
    one = Run(100.0, [107.0, 110.0, 110.5, 111.0], [0.1, 0.2, 0.4, 0.6], [6.0] * 4)
    assert one.step_seconds(2, 4) == pytest.approx(0.5)
    assert one.wall_seconds(3) == pytest.approx(10.5)
    assert one.reward_near(4, 2) == pytest.approx(0.5)


def test_rows_pair_each_arm_with_trl() -> None:
    rows = tables.rows([results()], "TRL")
    steps = [row for row in rows if row.what.startswith("a step")]
    assert [row.what for row in steps] == [f"a step: prompts of 13 tokens, 2 cores, {arm}" for arm in OURS]
    assert all(row.ratio is not None and row.ratio.middle == pytest.approx(4.0) for row in steps)
    walls = [row for row in rows if row.what.startswith("start to step 40")]
    assert len(walls) == len(OURS) and walls[0].ours.middle == pytest.approx(3.0 + 39 * 0.05)
    assert sum(row.what.startswith("reward") for row in rows) == len(OURS) * len(tables.MARKS)


def test_processor_time_is_compared_where_nothing_can_spin() -> None:
    rows = [row for row in tables.rows([results(), results(cores=(1,))], "TRL") if row.what.startswith("processor")]
    assert [row.what for row in rows] == [
        f"processor time of a step: prompts of 13 tokens, 1 core, {arm}" for arm in OURS
    ]
    assert rows[0].ours.middle == pytest.approx(50.0 * 1.5)


def test_too_few_seeds_or_steps_give_no_reward_rows() -> None:
    rows = tables.rows([results(repetitions=3), results(steps=30)], "TRL")
    assert not [row for row in rows if row.what.startswith("reward")]


def test_remarks_have_the_check_the_verdict_and_the_profile() -> None:
    text = tables.remarks([results()])
    assert "| prompts of 13 tokens, 2 cores | 0.420 | 0.430 | 6.000 | 6.000 |" in text
    assert "step 40: 0.430 is inside 0.400–0.440 (mean 0.420)" in text
    assert "| prompts of 13 tokens, 2 cores, staleness 2 | 25.0 |  | 50.0 |  | 75.0 | 50.0 | 40.0 | 0.10 |" in text


def test_figures_from_a_busy_machine_say_so() -> None:
    busy = results()
    busy.add(THEIRS, replace(busy.runs[THEIRS][0], others=2.0))
    assert "Not a quiet machine" in tables.remarks([busy])
    assert "Not a quiet machine" not in tables.remarks([results()])


def test_a_mean_beyond_the_range_is_outside() -> None:
    assert "0.500 is outside 0.300–0.400" in tables.within([0.5], [0.3, 0.4])


def test_rows_repeat_for_a_seed_and_hold_no_held_out_prompt(tmp_path: Path) -> None:
    for folder in ("one", "two"):
        (tmp_path / folder).mkdir()
        fixed.write_rows(LONG, 3, 7, tmp_path / folder)
    text = (tmp_path / "one" / "train.jsonl").read_text()
    assert text == (tmp_path / "two" / "train.jsonl").read_text()
    rows = [json.loads(line) for line in text.splitlines()]
    assert len(rows) == 3 * LONG.groups and all(len(row["preamble"]) == LONG.preamble for row in rows)
    held_out = json.loads((tmp_path / "one" / "eval.jsonl").read_text())
    assert held_out["prompt"] not in {row["prompt"] for row in rows}


def test_both_sides_get_the_same_hyper_parameters(tmp_path: Path) -> None:
    from benchmarks.beside_trl.marlaas_side import task_file

    path = tmp_path / "task.toml"
    path.write_text(task_file(SHORT, 12, 3, 0))
    (submission,) = taskfile.load(path)
    told = submission.spec.to_json()
    assert told["train"]["groups_per_step"] * told["train"]["group_size"] == SHORT.episodes
    assert (told["policy"]["rank"], told["policy"]["alpha"]) == (fixed.RANK, fixed.ALPHA)
    assert (told["train"]["learning_rate"], told["train"]["clip_norm"]) == (fixed.LEARNING_RATE, fixed.CLIP_NORM)
    assert told["sampling"]["max_episode_tokens"] == SHORT.max_tokens, "the loss's denominator is TRL's"
    assert PolicyConfig().betas == fixed.BETAS


@pytest.mark.parametrize(
    ("reply", "graded", "worth"),
    [("5234", False, 1.0), ("5234 ", False, 0.0), ("5134", True, 0.75), ("52345", True, 0.8), ("", True, 0.0)],
)
def test_grading(reply: str, graded: bool, worth: float) -> None:
    assert reward(reply, "5234", graded) == worth


def test_what_is_not_ours_is_the_others() -> None:
    before, after = Reading(10.0, 100.0), Reading(12.0, 103.0)
    assert used_by_others(before, after, 2.0) == pytest.approx(0.5)
    assert used_by_others(before, after, 3.5) == 0.0, "counts have a grain"
    assert used_by_others(before, before, 0.0) == 0.0


def test_where_all_steps_count_time_begins_with_the_training() -> None:
    one = Run(100.0, [107.0, 110.0, 113.0], [0.5] * 3, [6.0] * 3, begun=104.0)
    whole = Results(Case(SHORT, (0, 1), 3, 0, 1, "4 ×"), {THEIRS: [one]})
    assert whole.steps(THEIRS).middle == pytest.approx(3000.0)


def test_the_other_side_may_make_fewer_steps() -> None:
    theirs, ours = (Run(0.0, ends, [0.5] * 3, [6.0] * 3, begun=1.0) for ends in ([5.0], [4.0, 5.0, 7.0]))
    whole = Results(Case(SHORT, (0, 1), 3, 0, 1, "4 ×", fewer=1), {THEIRS: [theirs], "ours": [ours]})
    assert whole.steps(THEIRS).middle == pytest.approx(4000.0) and whole.steps("ours").middle == pytest.approx(2000.0)
