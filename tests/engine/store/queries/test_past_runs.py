"""What estimates rest on: rows of tasks that trained on the same environment and the same base."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marlaas.engine.spec.task import SamplingSpec, TaskSpec
from marlaas.engine.store.queries.learning import STEPS, past_runs
from marlaas.engine.store.queries.reader import Reader

from ....app.filling import Filling

CONFIG = json.dumps(TaskSpec("lab", "sums", "arithmetic", sampling=SamplingSpec(max_tokens=32)).to_json())


def test_a_run_in_figures(database: Path) -> None:
    filling = Filling(database)
    filling.task(made=12)
    filling.execute("UPDATE tasks SET started = created, base = 'b', config = ?", CONFIG)
    for stage, seconds in (("rollout", 6.0), ("training", 24.0)):
        for day in ("2026-11-20", "2026-11-21"):
            filling.insert("usage", day=day, task=1, stage=stage, tokens=1, seconds=seconds / 2)
    with Reader(database) as reader:
        (run,) = past_runs(reader, ["arithmetic"], "b")
        assert past_runs(reader, ["calculator"], "b") == [] and past_runs(reader, ["arithmetic"], "c") == []
    assert (run.task, run.episodes, run.max_tokens, run.steps) == (1, 64, 32, 12)
    assert run.seconds == pytest.approx(12 * 0.41) and run.tokens == 12 * 1480
    assert (run.rollout, run.training) == (0.5, 2.0)
    assert run.trajectory_tokens == 19 and 60 < run.trajectory_text < 200


def test_a_policy_of_several_has_its_own_batch(database: Path) -> None:
    filling = Filling(database)
    filling.task(made=12)
    own = json.dumps({"policies": {"policy": {"groups_per_step": 3}}})
    filling.execute("UPDATE tasks SET started = created, base = 'b', config = json_patch(?, ?)", CONFIG, own)
    with Reader(database) as reader:
        (run,) = past_runs(reader, ["arithmetic"], "b")
    assert run.episodes == 3 * 8


def test_only_the_newest_runs_that_trained_count(database: Path) -> None:
    filling = Filling(database)
    for made in (2, 5, 0, 7):
        filling.task(environment="arithmetic/arithmetic" if made == 7 else "arithmetic", made=made)
    filling.execute("UPDATE tasks SET started = created")
    filling.task(made=5)  # never started: a row of another machine's making
    with Reader(database) as reader:
        assert [run.task for run in past_runs(reader, ["arithmetic", "arithmetic/arithmetic"], "b")] == [4, 2]
        assert past_runs(reader, ["arithmetic"], "")[0].rollout == 0.0
    filling.execute("UPDATE policies SET step = ? WHERE task = 4", STEPS + 3)
    with Reader(database) as reader:
        assert past_runs(reader, ["arithmetic/arithmetic"], "b")[0].steps == 4
