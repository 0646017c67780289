"""What goes wrong in the learning of policies, and what that is seen from: metrics of steps, and what was said. Engine
side.

Each kind of finding is kept at most once for a policy, so that nobody is told twice. Those of voided steps go with them
(``VersionTable.void_after``).
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlite_utils import Database

from ..clock import wall_time
from .database import insert, transaction

MOST_READ = 256
"""Conversations of a step, the first, among which evidence is looked for: their text may be long."""


@dataclass(frozen=True)
class NewFinding:
    """What was found."""

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
    """Whether it is to pause its task, which no person has resumed since."""


@dataclass(frozen=True)
class StepSeen:
    """The metrics of a committed step."""

    step: int
    environment_version: str
    metrics: dict[str, float] = field(default_factory=dict)


@dataclass(frozen=True)
class Said:
    """What a policy said as one agent of one episode."""

    id: int
    """Of its first trajectory."""
    group: int
    """The group's number."""
    member: int
    reward: float | None
    replies: str
    """All its replies, joined."""
    cut: bool


class FindingTable:
    """Reads and writes of findings; every method is one short transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, policy: int, finding: NewFinding, pauses: bool) -> bool:
        """Keep a finding; False where this kind is known of the policy already, which then holds again.

        ``pauses``: its task is to pause, until a person resumes it.
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
        """The stored findings of a policy, by code."""
        rows = self._db.query("SELECT code, step, holds, pending FROM findings WHERE policy = ?", [policy])
        return {row["code"]: Known(row["step"], bool(row["holds"]), bool(row["pending"])) for row in rows}

    def lapse(self, policy: int, codes: Sequence[str]) -> None:
        """Record that these are no longer so."""
        with transaction(self._db):
            pairs = [(policy, code) for code in codes]
            self._db.conn.executemany("UPDATE findings SET holds = 0 WHERE policy = ? AND code = ?", pairs)

    def environment_at(self, policy: int, step: int) -> str:
        """The environment version that a step was trained on; empty where it is not known."""
        sql = "SELECT environment_version FROM steps WHERE policy = ? AND number = ?"
        return next((row["environment_version"] or "" for row in self._db.query(sql, [policy, step])), "")

    def seen(self, policy: int, names: Sequence[str], first: int, last: int) -> list[StepSeen]:
        """Metrics of these names of the steps on the newest environment version, oldest first: of the ``first`` of them
        and the ``last``."""
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
        """The first conversations that a step consumed, or that an evaluation played, of those that ended well."""
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
