"""Many tasks through the real engine: what is counted, and what is said when one cannot run."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.fleet import WIDE_ENGINE, fleet
from benchmarks.workload import load

pytestmark = pytest.mark.processes


def test_tasks_run_are_counted_and_refused_in_a_sentence() -> None:
    tasks = [replace(task, environment_config={"mean": 0.01}) for task in load("concurrency").part(2, 2).tasks]
    with fleet(["tools"], "[engine]\ntasks = 1\n", WIDE_ENGINE) as home:
        run = home.run(tasks)
        assert [len(task.steps) for task in run.tasks] == [2, 2]
        assert 0 < sum(run.turns().values()) == pytest.approx(run.makespan)
        assert {"rollout", "training", "engine", "env"} <= {stage for stage, spent in run.usage.spent.items() if spent}
        with pytest.raises(RuntimeError, match="'lost' of lab is failed"):
            home.run([replace(tasks[0], tenant="lab", name="lost", environment_config={"unknown": 1})])


def test_an_engine_that_cannot_start_says_why() -> None:
    with pytest.raises(RuntimeError, match=r"The engine ended: .*nonsense"), fleet(settings="nonsense = 1\n"):
        pass
