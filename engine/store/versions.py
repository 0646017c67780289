"""Policies, versions and steps, for recovery.

A step is one state file, then one transaction: step, version with checksum, consumed groups, metrics. Without the
transaction the step did not happen.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import chain, count
from types import MappingProxyType
from typing import Any

from sqlite_utils import Database

from ..clock import wall_time
from ..faults import Point, reach
from ..home.paths import Home
from ..trajectories import Split
from .database import Table, insert, insert_all, transaction
from .rows import EvalRow, NewFinding
from .schema import SUMS


@dataclass(frozen=True)
class NewVersion:
    """A state file to commit."""

    number: int
    name: str
    checksum: str
    path: str
    size: int


@dataclass(frozen=True, kw_only=True)
class Version(NewVersion):
    """A committed, immutable adapter version."""

    id: int
    policy: int
    resumable: bool = True


LATELY = 1024
"""Groups searched for the environment versions of a mixture's components."""
_COLUMNS = "id, policy, number, name, checksum, path, size, resumable"


class VersionTable:
    """Policies, versions, steps and metrics."""

    def __init__(self, database: Database, home: Home, incarnation: int, barrier: Callable[[], None]) -> None:
        self._db = database
        self._home = home
        self._incarnation = incarnation
        self.barrier = barrier

    def policy(self, task: int, name: str, config: dict[str, Any], split: Split = "eval") -> int:
        """Made on first use. ``split``: instances of its score."""
        rows = list(self._db.query("SELECT id FROM policies WHERE task = ? AND name = ?", [task, name]))
        if rows:
            return int(rows[0]["id"])
        row = {"task": task, "name": name, "config": json.dumps(config), "step": 0, "split": split}
        return insert(self._db, "policies", row)

    def sampler(self, policy: int) -> str:
        """What keeps a policy deterministic; empty: any."""
        return str(next(self._db.query("SELECT sampler FROM policies WHERE id = ?", [policy]))["sampler"])

    def keep_sampler(self, policy: int, kind: str) -> None:
        if self.sampler(policy) != kind:
            self._db.execute("UPDATE policies SET sampler = ? WHERE id = ?", [kind, policy])

    def mark_measured(self, policy: int) -> None:
        self._db.execute("UPDATE policies SET step = 1 WHERE id = ?", [policy])

    def candidates(self, policy: int) -> list[Version]:
        return self._versions(
            self._db.query(
                f"SELECT {_COLUMNS} FROM versions WHERE policy = ? AND state = 'committed'"
                f" ORDER BY number DESC, id DESC",
                [policy],
            )
        )

    def first(self, policy: int) -> Version:
        sql = f"SELECT {_COLUMNS} FROM versions WHERE policy = ? AND number = 0 AND state != 'void' ORDER BY id DESC"
        return self._versions(self._db.query(f"{sql} LIMIT 1", [policy]))[0]

    def start(self, task: int, words: str) -> Version | None:
        return next(
            iter(
                self._versions(
                    self._db.query(
                        f"SELECT {_COLUMNS} FROM versions WHERE id = (SELECT version"
                        f" FROM borrowed WHERE task = ? AND words = ?)",
                        [task, words],
                    )
                )
            ),
            None,
        )

    def borrow(self, task: int, words: str, version: int, plays: bool) -> None:
        """Bind what a task begins from, or needs while it runs (``plays``)."""
        with transaction(self._db):
            self._db.execute("INSERT INTO borrowed VALUES (?, ?, ?, ?)", [task, words, version, plays])

    def wanted(self, policy: int) -> dict[int, int]:
        """Versions that unfinished tasks play with or will begin from, each with one such task."""
        return {
            row["number"]: row["id"]
            for row in self._db.query(
                "SELECT v.number, t.id FROM borrowed b JOIN tasks t ON t.id = b.task"
                " JOIN versions v ON v.id = b.version"
                " WHERE v.policy = ? AND t.state IN ('submitted', 'queued', 'running', 'paused')"
                " AND (b.plays OR NOT EXISTS"
                " (SELECT 1 FROM policies p JOIN versions o ON o.policy = p.id"
                " WHERE p.task = t.id AND o.state = 'committed')) ORDER BY t.id DESC",
                [policy],
            )
        }

    def unused(self, name: str) -> str:
        """With a number if any version, even a void one, has had it."""
        taken = {
            row["name"]
            for row in self._db.query("SELECT name FROM versions WHERE name = ? OR name GLOB ?", [name, f"{name}-*"])
        }
        return next(n for n in chain([name], (f"{name}-{again}" for again in count(2))) if n not in taken)

    def void_after(self, policy: int, number: int) -> None:
        """Void versions above ``number`` (-1: all), with steps and findings.

        Their consumed groups wait again.
        """
        with transaction(self._db):
            voided = "SELECT id FROM versions WHERE policy = ? AND number > ?"
            self._db.execute(f"DELETE FROM evals WHERE version IN ({voided})", [policy, number])
            self._db.execute("DELETE FROM steps WHERE policy = ? AND number > ?", [policy, number])
            self._db.execute("DELETE FROM metrics WHERE policy = ? AND step > ?", [policy, number])
            self._db.execute("DELETE FROM findings WHERE policy = ? AND step > ?", [policy, number])
            self._db.execute(
                "UPDATE versions SET state = 'void', label = '' WHERE policy = ? AND number > ?", [policy, number]
            )
            self._db.execute(
                "UPDATE groups SET state = 'complete', step = NULL, weights = NULL"
                " WHERE policy = ? AND split = 'train' AND state = 'consumed' AND step > ?",
                [policy, number],
            )
            self._db.execute(f"{SUMS}, step = ? WHERE id = ?", [max(number, 0), policy])

    def commit_first(self, policy: int, version: NewVersion) -> Version:
        with transaction(self._db):
            return self._insert(policy, version)

    def commit_step(
        self,
        policy: int,
        version: NewVersion,
        groups: Sequence[int],
        seconds: float,
        metrics: dict[str, float],
        weights: Mapping[int, bytes] = MappingProxyType({}),
    ) -> Version:
        """All or nothing. ``groups``: consumed numbers. ``weights``: importance weights by group, in the schema's
        format."""
        reach(Point.COMMIT_READY)
        with transaction(self._db):
            committed = self._insert(policy, version)
            row = {
                "policy": policy,
                "number": version.number,
                "version": committed.id,
                "incarnation": self._incarnation,
                "seconds": seconds,
                "created": wall_time(),
                "environment_version": self._played_on(policy, max(groups, default=-1)),
            }
            insert(self._db, "steps", row)
            self._db.conn.executemany(
                "UPDATE groups SET state = 'consumed', step = ?, weights = ?"
                " WHERE policy = ? AND split = 'train' AND state = 'complete' AND number = ?",
                [(version.number, weights.get(number), policy, number) for number in groups],
            )
            insert_all(
                self._db,
                "metrics",
                (
                    {"policy": policy, "step": version.number, "name": name, "value": value}
                    for name, value in metrics.items()
                ),
            )
            self._db.execute(
                "UPDATE policies SET step = ?, tokens = tokens + ?, lost = lost + ?, errors = errors + ? WHERE id = ?",
                [version.number, *(metrics.get(name, 0) for name in ("tokens", "lost", "errors")), policy],
            )
            reach(Point.COMMIT_INSIDE)
        reach(Point.COMMIT_DONE)
        return committed

    def _played_on(self, policy: int, group: int) -> str:
        """For a mixture, of each component's newest group among the last ``LATELY``.

        Empty: unknown.
        """
        return "+".join(
            row["environment_version"]
            for row in self._db.query(
                "SELECT environment_version, max(number) FROM groups"
                " WHERE policy = ? AND split = 'train' AND number > ? AND number <= ?"
                " GROUP BY component ORDER BY component",
                [policy, group - LATELY, group],
            )
        )

    def add_metrics(self, policy: int, step: int, metrics: dict[str, float]) -> None:
        rows = ({"policy": policy, "step": step, "name": name, "value": value} for name, value in metrics.items())
        with transaction(self._db):
            insert_all(self._db, "metrics", rows, replace=True)

    def first_reward(self, policy: int) -> float:
        return next(
            (
                row["value"]
                for row in self._db.query(
                    "SELECT value FROM metrics WHERE policy = ? AND step = 1 AND name = 'reward'", [policy]
                )
            ),
            float("inf"),
        )

    def best_step(self, policy: int) -> tuple[int, float]:
        return next(
            (
                (row["step"], row["value"])
                for row in self._db.query(
                    "SELECT step, value FROM metrics WHERE policy = ? AND name = 'reward'"
                    " ORDER BY value DESC, step LIMIT 1",
                    [policy],
                )
            ),
            (0, 0.0),
        )

    def spoke(self, policy: int) -> bool:
        return any(
            True
            for _ in self._db.query(
                "SELECT 1 FROM metrics WHERE policy = ? AND name = 'tokens' AND value > 0 LIMIT 1", [policy]
            )
        )

    def standing(self, task: int) -> dict[int, tuple[str, int]]:
        return {
            row["id"]: (row["name"], row["step"])
            for row in self._db.query("SELECT id, name, step FROM policies WHERE task = ? ORDER BY id", [task])
        }

    def silent_steps(self, policy: int) -> int:
        """Last steps in a row with equal rewards in each group, since a person resumed the task, on the newest
        environment version."""
        rows = self._db.query(
            "SELECT count(*) AS count FROM metrics WHERE policy = :policy AND name = 'no_signal' AND step > max("
            " (SELECT resumed FROM policies WHERE id = :policy),"
            " (SELECT coalesce(max(step), 0) FROM metrics WHERE policy = :policy AND name = 'no_signal' AND value < 1),"
            " (SELECT coalesce(max(number), 0) FROM steps WHERE policy = :policy AND coalesce(environment_version, '')"
            "  != (SELECT coalesce(environment_version, '') FROM steps WHERE policy = :policy"
            "  ORDER BY number DESC LIMIT 1)))",
            {"policy": policy},
        )
        return next(int(row["count"]) for row in rows)

    def label(self, policy: int, labels: dict[int, str]) -> None:
        with transaction(self._db):
            self._db.execute("UPDATE versions SET label = '' WHERE policy = ? AND label != ''", [policy])
            for number, label in labels.items():
                self._db.execute(
                    "UPDATE versions SET label = ? WHERE policy = ? AND number = ? AND state = 'committed'",
                    [label, policy, number],
                )

    def on_disk(self, task: int, policy: str | None = None) -> list[Version]:
        return self._versions(
            self._db.query(
                f"SELECT {_COLUMNS} FROM versions WHERE state = 'committed'"
                " AND policy IN (SELECT id FROM policies WHERE task = ?"
                " AND name = coalesce(?, name)) ORDER BY number, id",
                [task, policy],
            )
        )

    def prune(self, *versions: int) -> None:
        """All or none; call it before removing the files."""
        if versions:
            with transaction(self._db):
                one_by_one = [[version] for version in versions]
                self._db.conn.executemany("UPDATE versions SET state = 'pruned' WHERE id = ?", one_by_one)

    def strip(self, version: int, size: int) -> None:
        self._db.execute("UPDATE versions SET resumable = 0, size = ? WHERE id = ?", [size, version])

    def restart(self, version: int, size: int) -> None:
        """The file has zero moments."""
        self._db.execute("UPDATE versions SET resumable = 1, restarted = 1, size = ? WHERE id = ?", [size, version])

    def _insert(self, policy: int, version: NewVersion) -> Version:
        path = self._home.file(version.path)
        row = {
            "policy": policy,
            "number": version.number,
            "name": version.name,
            "incarnation": self._incarnation,
            "state": "committed",
            "checksum": version.checksum,
            "path": self._home.name_of(path),
            "size": version.size,
            "created": wall_time(),
        }
        key = insert(self._db, "versions", row)
        return Version(**{**vars(version), "path": str(path)}, id=key, policy=policy)

    def _versions(self, rows: Iterable[dict[str, Any]]) -> list[Version]:
        folder = cache(self._home.file)
        found = []
        for row in rows:
            where, _, name = row["path"].rpartition("/")
            found.append(Version(**{**row, "path": str(folder(where) / name), "resumable": bool(row["resumable"])}))
        return found


Evaluation = EvalRow


@dataclass(frozen=True)
class HeldOutScore:
    """A score in a series, with its error."""

    step: int
    score: float
    stderr: float
    prompts: int


def best(scores: Mapping[int, float]) -> int:
    """The highest score's step, the earliest of equals. Raises ``ValueError`` without scores.

    The one definition of best.
    """
    return max(scores, key=lambda step: (scores[step], -step))


class EvaluationTable:
    """Of one suite and split, by default the task's own."""

    def __init__(self, database: Database, suite: str = "", split: Split = "eval") -> None:
        self._db = database
        self._suite, self._split = suite, split

    def of(self, suite: str, split: Split = "eval") -> EvaluationTable:
        return EvaluationTable(self._db, suite, split)

    def add(self, policy: int, version: int, evaluation: Evaluation) -> None:
        """Replaces one of the same series, suite, split and step.

        ``version``: 0 without a row, such as the bare base.
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
        return {
            row["step"]: row["score"]
            for row in self._db.query(
                "SELECT step, score FROM evals WHERE policy = ? AND series = ? AND suite = ?"
                " AND split = ? ORDER BY step",
                [policy, series, self._suite, self._split],
            )
        }

    def series(self, policy: int) -> str | None:
        return next(
            (
                row["series"]
                for row in self._db.query(
                    "SELECT series FROM evals WHERE policy = ? AND suite = ? AND split = ? ORDER BY id DESC LIMIT 1",
                    [policy, self._suite, self._split],
                )
            ),
            None,
        )

    def scores(self, policy: int) -> dict[int, float]:
        return {row.step: row.score for row in self.compared(policy)}

    def compared(self, policy: int) -> tuple[HeldOutScore, ...]:
        rows = self._db.query(
            "SELECT step, score, coalesce(stderr, 0.0) AS stderr, prompts FROM evals"
            " WHERE policy = ? AND series = ? AND suite = ? AND split = ? AND score IS NOT NULL ORDER BY step",
            [policy, self.series(policy), self._suite, self._split],
        )
        return tuple(HeldOutScore(**row) for row in rows)

    def best_of_each(self, policy: int) -> set[int]:
        """Without version 0."""
        rows = self._db.query(
            "SELECT step FROM (SELECT step, row_number() OVER (PARTITION BY series ORDER BY score DESC, step) AS place"
            " FROM evals WHERE policy = ? AND suite = ? AND split = ? AND score IS NOT NULL AND step > 0)"
            " WHERE place = 1",
            [policy, self._suite, self._split],
        )
        return {row["step"] for row in rows}


# At most one of a kind for a policy.

MOST_READ = 256
"""Conversations searched for evidence: their text may be long."""


@dataclass(frozen=True)
class Known:
    """A stored finding."""

    step: int
    holds: bool
    pending: bool


@dataclass(frozen=True)
class StepSeen:
    """A committed step's metrics."""

    step: int
    environment_version: str
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Said:
    """One agent's replies in one episode."""

    id: int
    group: int
    member: int
    reward: float | None
    replies: str
    cut: bool


class FindingTable(Table):
    """Every method is one short transaction."""

    def add(self, policy: int, finding: NewFinding, pauses: bool) -> bool:
        """False: the policy has this kind, which holds again.

        ``pauses``: until a person resumes it.
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
        return next(
            (
                row["environment_version"] or ""
                for row in self._db.query(
                    "SELECT environment_version FROM steps WHERE policy = ? AND number = ?", [policy, step]
                )
            ),
            "",
        )

    def seen(self, policy: int, names: Sequence[str], first: int, last: int) -> list[StepSeen]:
        """On the newest environment version, oldest first."""
        (newest,) = self._db.conn.execute("SELECT max(number) FROM steps WHERE policy = ?", [policy]).fetchone()
        if newest is None:
            return []
        environment = self.environment_at(policy, newest)
        sql = (
            "SELECT coalesce(max(number), 0) + 1 FROM steps WHERE policy = ? AND coalesce(environment_version, '') != ?"
        )
        (begun,) = self._db.conn.execute(sql, [policy, environment]).fetchone()
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
