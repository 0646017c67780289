"""Reads the adapter versions whose files are kept, with what a person chooses by. Standard library only.

A policy's mark changes when its kept versions do, so that only those of changed policies need be read again.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from ..rows import FINISHED, VersionRow
from ..score_basis import BASIS
from ..shown_state import shown_state
from .reader import Reader

_KEPT = f"""
SELECT v.id, t.id AS task, t.tenant, t.name AS task_name, p.name AS policy, v.number, v.name, v.state, v.label,
       e.score, CASE WHEN e.id IS NOT NULL THEN {BASIS} END AS basis, v.checksum, v.path, v.size,
       v.created, v.resumable, v.policy AS policy_id, {shown_state("t")} AS task_state, t.environment, t.steps
FROM versions v JOIN policies p ON p.id = v.policy JOIN tasks t ON t.id = p.task
LEFT JOIN evals e ON e.id =
    (SELECT max(id) FROM evals WHERE version = v.id AND +policy = v.policy AND step = v.number
        AND suite = '' AND split = 'eval')
WHERE v.state = 'committed'
"""
"""The plus sign keeps sqlite from looking through all evaluations of the policy."""
_MARKS = f"""
SELECT v.policy, max(v.id), count(*), total(v.size), group_concat(v.label), {shown_state("t")}, t.steps,
       (SELECT id FROM evals WHERE policy = v.policy AND suite = '' AND split = 'eval' ORDER BY id DESC LIMIT 1)
FROM versions v JOIN policies p ON p.id = v.policy JOIN tasks t ON t.id = p.task
WHERE v.state = 'committed' GROUP BY v.policy
"""
_OWN = ("policy_id", "task_state", "environment", "steps")

KeptMarks = Mapping[int, tuple[object, ...]]
"""By policy: a value that differs once anything about its kept versions has changed."""


@dataclass(frozen=True)
class KeptVersion:
    """A version whose file is on the disk, with its task."""

    row: VersionRow
    policy_id: int
    task_state: str
    environment: str
    steps: int
    """Steps that the task is to make."""

    @property
    def label(self) -> str:
        """best, last, both, or final: the last version of a finished task."""
        last = "final" if self.task_state in FINISHED else "last"
        return self.row.label.replace("last", last)


def kept_marks(reader: Reader) -> KeptMarks:
    """The marks of all policies that have a version on the disk."""
    return {row[0]: tuple(row) for row in reader.all(_MARKS)}


def kept_versions(reader: Reader, policies: Iterable[int]) -> list[KeptVersion]:
    """The kept versions of some policies, in no order."""
    wanted = ",".join(str(int(policy)) for policy in policies)
    return [_kept(reader, row) for row in reader.all(f"{_KEPT} AND v.policy IN ({wanted})")]


def _kept(reader: Reader, row: sqlite3.Row) -> KeptVersion:
    values = dict(row)
    own = {name: values.pop(name) for name in _OWN}
    return KeptVersion(reader.version(values), **own)
