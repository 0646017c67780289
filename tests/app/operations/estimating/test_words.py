"""Estimates are said with what they rest on, and without figures that nobody can know."""

from __future__ import annotations

from dataclasses import replace

from marlaas.app.operations.estimating import Estimates, Workers, as_json, task_json, time_cell, told
from marlaas.engine.queue.submission.estimate import DiskEstimate, TaskEstimate, TimeEstimate

TIME = TimeEstimate(720.0, 700.0, 800.0, runs=3, alike=True, rollout=300.0, training=500.0)
TASK = TaskEstimate(TIME, DiskEstimate(5_000_000, 9_000_000, True), 8_000_000, 983_040)
WORKERS = Workers(1_100_000_000, False, 21_000_000_000, 2048)


def words(*tasks: TaskEstimate, workers: Workers = WORKERS, free: int = 10**12) -> dict[str, str]:
    return dict(told(Estimates(tasks, workers, free), ["arithmetic"] * len(tasks)))


def test_one_task() -> None:
    said = words(TASK)
    assert said["time"] == "about 12 min, from 3 earlier tasks on arithmetic"
    assert said["memory"] == "the workers take 1.1 GB of 21.0 GB that are free; this task adds 8 MB"
    assert said["disk"] == "about 14 MB: adapters 5 MB, trajectories 9 MB" and time_cell(TASK) == "~12 min"


def test_a_plan_for_the_processor_says_so_beside_cards() -> None:
    said = words(TASK, workers=replace(WORKERS, cards="gpu 0 and gpu 1"))["memory"]
    before = "on the processor alone (an engine would use gpu 0 and gpu 1, see `marlaas doctor`): "
    assert said == before + words(TASK)["memory"]
    small = words(TASK, workers=replace(WORKERS, cards="gpu 0", problem="It does not fit."))["memory"]
    assert small.endswith("): It does not fit.")


def test_differing_rates_and_other_lengths_are_said() -> None:
    wide = replace(TASK, time=replace(TIME, most=1500.0, runs=1, alike=False))
    assert words(wide)["time"] == "12 min to 25 min, from 1 earlier task on arithmetic, with another max_tokens"


def test_where_nothing_was_measured_it_says_so() -> None:
    unknown = replace(TASK, time=None, disk=replace(TASK.disk, measured=False))
    said = words(unknown)
    assert said["time"] == "unknown: no task here has trained on arithmetic yet; at most 983.0k tokens are sampled"
    assert said["disk"].startswith("at most 14 MB") and time_cell(unknown) == "?"
    assert task_json(unknown)["seconds"] is None and task_json(TASK)["seconds_range"] == [700.0, 800.0]
    assert task_json(TASK)["episodes_played"] == 0


def test_several_tasks_share_the_workers() -> None:
    said = words(TASK, TASK, TASK)
    assert said["time"] == "about 25 min until all are done, from 3 earlier tasks on arithmetic"
    assert said["memory"].endswith("these tasks add 24 MB")
    assert words(TASK, replace(TASK, time=None))["time"].startswith("unknown")


def test_shortages() -> None:
    running = words(TASK, workers=replace(WORKERS, running=True))
    assert running["memory"] == "the workers take 1.1 GB now; this task adds 8 MB"
    assert words(TASK, workers=replace(WORKERS, problem="Too big.\x1b[2J"))["memory"] == "Too big."
    assert words(TASK, free=1_000_000)["disk"].endswith("only 1 MB are free, and tasks will wait for room")
    assert as_json(Estimates((TASK,), WORKERS, 5))["disk_free"] == 5
