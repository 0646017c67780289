"""What the benchmark of graders tells: which sides its rows have, and that its environments grade alike."""

from __future__ import annotations

import pytest

from benchmarks.engine import rewards
from benchmarks.engine.environments import in_a_home
from benchmarks.engine.rewards import ARMS, GRADERS, QUICK, Grader, Measured, rows, waited
from benchmarks.machinery.fleet import FleetRun, TaskRun
from benchmarks.machinery.meter import Usage
from benchmarks.report.headline import PICKS
from marlaas.engine.store.rows import StepRow, TaskRow
from marlaas.engine.submission.taskfile import submission


def run_of(seconds: float, sampler: float) -> Measured:
    row = object.__new__(TaskRow)
    object.__setattr__(row, "finished", 100.0 + seconds)
    steps = [object.__new__(StepRow) for _ in range(4)]
    for step in steps:
        object.__setattr__(step, "metrics", {"errors": 1.0})
    return Measured(FleetRun(100.0, (TaskRun(row, tuple(steps), ()),), Usage(seconds, {}, {}, 0.0)), sampler)


def test_rows_set_elastic_workers_beside_the_others() -> None:
    graders = Grader(2.0, 1, 4), Grader(0.05, 1, 4)
    found = {
        (words, arm.name): [run_of(8.0 * (place + 1), 2.0)]
        for words in ("2 s", "50 ms")
        for place, arm in enumerate(reversed(ARMS))
    }
    table = rows(graders, found)
    steps = {row.other: row for row in table if row.what == "a step, grader of 2 s"}
    assert steps["one worker"].ours.values == (2.0,) and steps["one worker"].theirs is not None
    assert steps["one worker"].theirs.values == (6.0,) and steps["inline"].ratio is not None
    assert steps["inline"].ratio.values == (4.0,)
    busy = next(row for row in table if row.unit == "%" and row.other == "inline")
    assert busy.ours.values == (25.0,) and busy.ratio is not None and busy.ratio.values == (4.0,)
    assert table[-1].ours.values == (4.0,) * 8
    named = {(row.what, row.other) for row in table}
    assert {(pick.row, pick.other) for pick in PICKS if pick.section == "rewards"} <= named


@pytest.mark.parametrize("grader", [*GRADERS, *QUICK])
def test_its_tasks_can_be_submitted(grader: Grader) -> None:
    for arm in ARMS:
        config = submission(grader.task(arm)).config
        assert config["environment"] == arm.environment and config["environment_config"]["seconds"] == grader.seconds


@pytest.mark.processes
def test_waiting_is_measured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewards, "WAITS", 2)
    assert in_a_home(lambda home: waited(home, 1)) >= 2 * rewards.WAIT, "one after the other"
