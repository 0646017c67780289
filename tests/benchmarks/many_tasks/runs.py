"""Runs of tasks, written down by hand."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.machinery.fleet import FleetRun, TaskRun
from benchmarks.machinery.meter import Usage
from marlaas.engine.store.rows import EvalRow, StepRow, TaskRow

USAGE = Usage(10.0, {}, {}, 0.0)
STEP = {"drift_mean": 0.25, "drift_max": 1.5, "clipped": 0.02, "weight_mean": 1.01, "weight_ess": 0.9}


def learned(
    tenant: str, name: str, scores: Sequence[float], rewards: Sequence[float] = (0.5, 0.5), seconds: float = 1.0
) -> TaskRun:
    """A task with held-out scores every ten steps and these rewards, whose steps take ``seconds``."""
    row = TaskRow(
        id=1, tenant=tenant, name=name, environment="e", state="done", reason="", priority=0, step=2, steps=2,
        reward=None, score=None, best=None, floor=None, adapter_version="", staleness=None, tokens=0, seconds=0.0,
        created=100.0, started=100.0, finished=200.0,
    )  # fmt: skip
    steps = (
        StepRow(number, 100.0 + seconds * number, reward, STEP | {"reward": reward})
        for number, reward in enumerate(rewards, 1)
    )
    evals = (EvalRow(10 * number, "v", score, 0.0, 8, None, {}) for number, score in enumerate(scores))
    return TaskRun(row, tuple(steps), tuple(evals))


def together(*tasks: TaskRun) -> FleetRun:
    return FleetRun(100.0, tasks, USAGE)
