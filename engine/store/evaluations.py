"""Held-out scores, one row for each version and evaluation series of a policy, and findings about its learning.

The scores of a series compare: same prompts, same grading code (``engine/train/held_out.py``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field

from sqlite_utils import Database

from ..clock import wall_time
from ..faults import Point, reach
from ..trajectories import Split
from .database import Table, insert, transaction
from .rows import EvalRow

Evaluation = EvalRow


@dataclass(frozen=True)
class HeldOutScore:
    """A version's score in a series, with its error."""

    step: int
    score: float
    stderr: float
    """Standard error of the score, from distinct prompts."""
    prompts: int


def best(scores: Mapping[int, float]) -> int:
    """The step with the highest score, of equal ones the earliest. Raises ``ValueError`` if there is none.

    The one definition of best: for labels, kept files, and the end of a task.
    """
    return max(scores, key=lambda step: (scores[step], -step))


class EvaluationTable:
    """Reads and writes of evaluations of one suite and split, by default a task's own held-out prompts."""

    def __init__(self, database: Database, suite: str = "", split: Split = "eval") -> None:
        self._db = database
        self._suite, self._split = suite, split

    def of(self, suite: str, split: Split = "eval") -> EvaluationTable:
        return EvaluationTable(self._db, suite, split)

    def add(self, policy: int, version: int, evaluation: Evaluation) -> None:
        """Store an evaluation of a version; it replaces one of the same series, suite, split and step.

        ``version``: its id; 0 for one without a row, such as the bare base.
        """
        row = {
            **asdict(evaluation),
            "policy": policy,
            "version": version or None,
            "series": evaluation.series or evaluation.environment_version,
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
        return any(True for _ in self._db.query("SELECT 1 FROM evals WHERE policy = ? LIMIT 1", [policy]))

    def measured(self, policy: int, series: str) -> dict[int, float | None]:
        """Scores of one series by step, in order; None: measured without a valid score."""
        rows = self._db.query(
            "SELECT step, score FROM evals WHERE policy = ? AND series = ? AND suite = ? AND split = ? ORDER BY step",
            [policy, series, self._suite, self._split],
        )
        return {row["step"]: row["score"] for row in rows}

    def baseline(self, policy: int, series: str) -> float | None:
        rows = self._db.query(
            "SELECT floor FROM evals WHERE policy = ? AND series = ? AND suite = ? AND split = ?"
            " ORDER BY id DESC LIMIT 1",
            [policy, series, self._suite, self._split],
        )
        return next((row["floor"] for row in rows), None)

    def series(self, policy: int) -> str | None:
        rows = self._db.query(
            "SELECT series FROM evals WHERE policy = ? AND suite = ? AND split = ? ORDER BY id DESC LIMIT 1",
            [policy, self._suite, self._split],
        )
        return next((row["series"] for row in rows), None)

    def scores(self, policy: int) -> dict[int, float]:
        series = self.series(policy)
        found = self.measured(policy, series) if series is not None else {}
        return {step: score for step, score in found.items() if score is not None}

    def compared(self, policy: int) -> tuple[HeldOutScore, ...]:
        rows = self._db.query(
            "SELECT step, score, coalesce(stderr, 0.0) AS stderr, prompts FROM evals"
            " WHERE policy = ? AND series = ? AND suite = ? AND split = ? AND score IS NOT NULL ORDER BY step",
            [policy, self.series(policy), self._suite, self._split],
        )
        return tuple(HeldOutScore(**row) for row in rows)

    def best_of_each(self, policy: int) -> set[int]:
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


# Findings: each kind is kept at most once for a policy. ``VersionTable.void_after`` removes those of voided steps.

MOST_READ = 256
"""First conversations of a step that are searched for evidence: their text may be long."""


@dataclass(frozen=True)
class NewFinding:
    """A new finding."""

    code: str
    step: int
    evidence: Mapping[str, float]
    rollouts: tuple[int, ...] = ()
    """Ids of trajectories, each the first of a conversation."""


@dataclass(frozen=True)
class Known:
    """A finding that is stored."""

    step: int
    holds: bool
    pending: bool
    """True if it pauses its task, and no person has resumed that since."""


@dataclass(frozen=True)
class StepSeen:
    """The metrics of a committed step."""

    step: int
    environment_version: str
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Said:
    """The replies of one agent of one episode."""

    id: int
    """Of its first trajectory."""
    group: int
    member: int
    reward: float | None
    replies: str
    cut: bool


class FindingTable(Table):
    """Reads and writes of findings; every method is one short transaction."""

    def add(self, policy: int, finding: NewFinding, pauses: bool) -> bool:
        """Store a finding; False if the policy has this kind already: then that one holds again.

        ``pauses``: its task pauses until a person resumes it.
        """
        row = {
            "policy": policy,
            "code": finding.code,
            "step": finding.step,
            "evidence": json.dumps(dict(finding.evidence)),
            "rollouts": json.dumps(finding.rollouts),
            "holds": 1,
            "pending": int(pauses),
            "created": wall_time(),
        }
        with transaction(self._db):
            same = "policy = ? AND code = ?"
            if self._db.conn.execute(f"SELECT 1 FROM findings WHERE {same}", [policy, finding.code]).fetchone():
                self._db.execute(f"UPDATE findings SET holds = 1 WHERE {same}", [policy, finding.code])
                return False
            insert(self._db, "findings", row)
        return True

    def known(self, policy: int) -> dict[str, Known]:
        rows = self._db.query("SELECT code, step, holds, pending FROM findings WHERE policy = ?", [policy])
        return {row["code"]: Known(row["step"], bool(row["holds"]), bool(row["pending"])) for row in rows}

    def lapse(self, policy: int, codes: Sequence[str]) -> None:
        with transaction(self._db):
            pairs = [(policy, code) for code in codes]
            self._db.conn.executemany("UPDATE findings SET holds = 0 WHERE policy = ? AND code = ?", pairs)

    def environment_at(self, policy: int, step: int) -> str:
        sql = "SELECT environment_version FROM steps WHERE policy = ? AND number = ?"
        return next((row["environment_version"] or "" for row in self._db.query(sql, [policy, step])), "")

    def seen(self, policy: int, names: Sequence[str], first: int, last: int) -> list[StepSeen]:
        """Metrics ``names`` of the ``first`` and the ``last`` steps on the newest environment version, oldest first."""
        newest = next(iter(self._db.query("SELECT max(number) AS n FROM steps WHERE policy = ?", [policy])))["n"]
        if newest is None:
            return []
        environment = self.environment_at(policy, newest)
        other = "SELECT max(number) AS n FROM steps WHERE policy = ? AND coalesce(environment_version, '') != ?"
        begun = (next(iter(self._db.query(other, [policy, environment])))["n"] or 0) + 1
        metrics = self._metrics(policy, names, begun, begun + first - 1)
        metrics |= self._metrics(policy, names, max(begun, newest - last + 1), newest)
        return [StepSeen(step, environment, found) for step, found in sorted(metrics.items())]

    def _metrics(self, policy: int, names: Sequence[str], begin: int, end: int) -> dict[int, dict[str, float]]:
        marks = ",".join("?" * len(names))
        rows = self._db.conn.execute(
            f"SELECT step, name, value FROM metrics WHERE policy = ? AND name IN ({marks}) AND step BETWEEN ? AND ?",
            [policy, *names, begin, end],
        )
        found: dict[int, dict[str, float]] = {}
        for step, name, value in rows:
            if value is not None:  # a metric that is no number
                found.setdefault(step, {})[name] = value
        return found

    def said(self, policy: int, step: int, split: str = "train", suites: Sequence[str] = ("",)) -> list[Said]:
        marks = ",".join("?" * len(suites))
        rows = self._db.query(
            "SELECT min(j.id) AS id, g.number, j.member, j.reward, max(j.cut) AS cut,"
            " json_group_array(json(coalesce(j.turns, '[]'))) AS turns"
            ' FROM groups g JOIN trajectories j ON j."group" = g.id'
            f" WHERE g.policy = ? AND g.split = ? AND g.step = ? AND g.suite IN ({marks})"
            " AND j.speaker = '' AND j.status = 'ok'"
            " GROUP BY g.id, j.member, j.agent ORDER BY g.id DESC, min(j.id) LIMIT ?",
            [policy, split, step, *suites, MOST_READ],
        )
        return [
            Said(
                row["id"],
                row["number"],
                row["member"],
                row["reward"],
                "\n".join(
                    turn["text"] for part in json.loads(row["turns"]) for turn in part if turn["role"] == "assistant"
                ),
                bool(row["cut"]),
            )
            for row in rows
        ]
