"""Held-out scores: one row for each version of a policy in each evaluation series. Engine side.

A series is what scores compare on: the same prompts, graded by the same code (``engine/train/scores.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

from sqlite_utils import Database

from ..clock import wall_time
from ..faults import Point, reach
from ..trajectories import Split
from .database import insert, transaction


@dataclass(frozen=True)
class Evaluation:
    """A version measured on held-out prompts."""

    step: int
    environment_version: str
    score: float | None
    """Mean over the prompts of the mean reward of each prompt's episodes, avg@k; None where too many episodes failed
    for a score."""
    stderr: float
    """Standard error of the score, from distinct prompts."""
    n: int
    """Episodes that have a reward."""
    floor: float | None
    """The constant-answer baseline on the same prompts; None where it is not known."""
    metrics: Mapping[str, float]
    """Means of what the environment logged."""
    failures: int = 0
    """Episodes that have no reward after all tries."""
    prompts: int = 0
    """Distinct prompts among the episodes that have a reward."""
    samples: int = 1
    """Episodes of each prompt, k."""
    series: str = ""
    """The key of its series; empty: that of its environment version alone."""
    suite: str = ""
    """The name of its suite; empty for the task's own held-out prompts."""
    split: str = "eval"
    """``eval`` or ``test``."""
    best_of: float | None = None
    """best@k: the mean over the prompts of the best reward of each; None where k is 1."""
    pass_at: float | None = None
    """pass@k; None where k is 1."""


@dataclass(frozen=True)
class HeldOutScore:
    """A version's score in a series, with what is needed to tell it from another one's."""

    step: int
    score: float
    stderr: float
    """Standard error of the score, from distinct prompts."""
    prompts: int


def best(scores: Mapping[int, float]) -> int:
    """The step with the highest score, of equal ones the earliest. Raises ``ValueError`` where there is none.

    The one definition of best: for labels, for what stays on the disk, and for what ends a task.
    """
    return max(scores, key=lambda step: (scores[step], -step))


class EvaluationTable:
    """Reads and writes of evaluations: those of one suite and split, by default of a task's own held-out prompts."""

    def __init__(self, database: Database, suite: str = "", split: Split = "eval") -> None:
        self._db = database
        self._suite, self._split = suite, split

    def of(self, suite: str, split: Split = "eval") -> EvaluationTable:
        """The evaluations of another suite or split; an empty suite is the task's own environment."""
        return EvaluationTable(self._db, suite, split)

    def add(self, policy: int, version: int, evaluation: Evaluation) -> None:
        """Record an evaluation of a version; the same series, suite, split and step again replace it.

        ``version``: its id; 0 for one without a row, such as the bare base.
        """
        row = {
            "policy": policy,
            "version": version or None,
            "step": evaluation.step,
            "environment_version": evaluation.environment_version,
            "series": evaluation.series or evaluation.environment_version,
            "suite": evaluation.suite,
            "split": evaluation.split,
            "score": evaluation.score,
            "stderr": evaluation.stderr,
            "n": evaluation.n,
            "failures": evaluation.failures,
            "prompts": evaluation.prompts,
            "samples": evaluation.samples,
            "best_of": evaluation.best_of,
            "pass_at": evaluation.pass_at,
            "floor": evaluation.floor,
            "metrics": json.dumps(dict(evaluation.metrics)),
            "created": wall_time(),
        }
        reach(Point.EVALUATION_READY)
        with transaction(self._db):
            self._db.execute(
                "DELETE FROM evals WHERE policy = ? AND series = ? AND suite = ? AND split = ? AND step = ?",
                [row[name] for name in ("policy", "series", "suite", "split", "step")],
            )
            insert(self._db, "evals", row)
        reach(Point.EVALUATION_STORED)

    def has(self, policy: int) -> bool:
        """Whether the policy was measured at all."""
        return any(True for _ in self._db.query("SELECT 1 FROM evals WHERE policy = ? LIMIT 1", [policy]))

    def measured(self, policy: int, series: str) -> dict[int, float | None]:
        """Scores of one series by step, in the order of the steps; None: measured, and it is no score."""
        rows = self._db.query(
            "SELECT step, score FROM evals WHERE policy = ? AND series = ? AND suite = ? AND split = ? ORDER BY step",
            [policy, series, self._suite, self._split],
        )
        return {row["step"]: row["score"] for row in rows}

    def baseline(self, policy: int, series: str) -> float | None:
        """The newest constant-answer baseline of a series; None where there is none."""
        rows = self._db.query(
            "SELECT floor FROM evals WHERE policy = ? AND series = ? AND suite = ? AND split = ?"
            " ORDER BY id DESC LIMIT 1",
            [policy, series, self._suite, self._split],
        )
        return next((row["floor"] for row in rows), None)

    def series(self, policy: int) -> str | None:
        """The newest series; None before the first evaluation."""
        rows = self._db.query(
            "SELECT series FROM evals WHERE policy = ? AND suite = ? AND split = ? ORDER BY id DESC LIMIT 1",
            [policy, self._suite, self._split],
        )
        return next((row["series"] for row in rows), None)

    def scores(self, policy: int) -> dict[int, float]:
        """Scores by version number of the newest series, without what is no score: these decide."""
        series = self.series(policy)
        found = self.measured(policy, series) if series is not None else {}
        return {step: score for step, score in found.items() if score is not None}

    def compared(self, policy: int) -> tuple[HeldOutScore, ...]:
        """Scores of the newest series, by step, without what is no score."""
        rows = self._db.query(
            "SELECT step, score, coalesce(stderr, 0.0) AS stderr, prompts FROM evals"
            " WHERE policy = ? AND series = ? AND suite = ? AND split = ? AND score IS NOT NULL ORDER BY step",
            [policy, self.series(policy), self._suite, self._split],
        )
        return tuple(HeldOutScore(**row) for row in rows)

    def best_of_each(self, policy: int) -> set[int]:
        """The numbers of the best trained versions, one of each series."""
        rows = self._db.query(
            "SELECT DISTINCT series FROM evals WHERE policy = ? AND suite = ? AND split = ?",
            [policy, self._suite, self._split],
        )
        found = set()
        for series in [row["series"] for row in rows]:
            scores = {step: score for step, score in self.measured(policy, series).items() if score is not None}
            scores.pop(0, None)
            if scores:
                found.add(best(scores))
        return found
