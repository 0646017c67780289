"""What the canary's benchmark reads off runs; nothing runs here."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.machinery.sync_engine import UNCHECKED
from benchmarks.many_tasks import canary
from benchmarks.many_tasks.scaling import tasks_of

from .runs import USAGE, learned, together


def test_processor_time_is_shared_out_over_all_steps() -> None:
    run = together(learned("a", "one", (0.5,)), learned("b", "two", (0.5,)))
    spent = {"training": 0.2, "rollout": 0.1, "engine": 0.04}
    checked = replace(run, usage=replace(USAGE, spent=spent))
    unchecked = replace(run, usage=replace(USAGE, spent={stage: each / 2 for stage, each in spent.items()}))
    trainer, sampler, engine = canary.rows([checked], [unchecked])
    assert [row.ours.values[0] for row in (trainer, sampler, engine)] == pytest.approx([50.0, 25.0, 10.0])
    assert trainer.theirs is not None and trainer.theirs.values[0] == pytest.approx(25.0)
    assert trainer.other == UNCHECKED and trainer.goal and not engine.goal


def test_each_task_draws_its_own_rows() -> None:
    tasks = tasks_of(8, 40)
    assert len({task.train.seed for task in tasks}) == len({task.name for task in tasks}) == 8
    assert len({task.tenant for task in tasks}) == 4 and {task.steps for task in tasks} == {40}
