"""Adapter versions whose files are kept, with what a person chooses by: standard library only.

A reader flows in, one frozen row for each version flows out; versions whose file is gone are left out.
"""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass

from .reader import Reader
from .rows import FINISHED, VersionRow

_KEPT = """
SELECT v.id, t.id AS task, t.tenant, t.name AS task_name, p.name AS policy, v.number, v.name, v.state, v.label,
       e.score, v.checksum, v.path, v.size, v.created, v.resumable,
       e.stderr, t.state AS task_state, t.environment, t.steps, p.step
FROM versions v JOIN policies p ON p.id = v.policy JOIN tasks t ON t.id = p.task
LEFT JOIN evals e ON e.id = (SELECT max(id) FROM evals WHERE policy = v.policy AND version = v.id)
WHERE v.state = 'committed' ORDER BY t.id DESC, v.number DESC
"""
_OWN = ("stderr", "task_state", "environment", "steps", "step")


@dataclass(frozen=True)
class KeptVersion:
    """A version on the disk, and the task that it is of."""

    row: VersionRow
    stderr: float | None
    """Of its newest held-out score."""
    task_state: str
    environment: str
    steps: int
    """That the task is to make."""
    step: int
    """Where the task stands."""

    @property
    def label(self) -> str:
        """best, last, both, or final: the last version of a finished task."""
        last = "final" if self.task_state in FINISHED else "last"
        return self.row.label.replace("last", last)


def kept_versions(reader: Reader) -> list[KeptVersion]:
    """All of the home, newest task first and newest version first."""
    return [_kept(row) for row in reader.all(_KEPT)]


def _kept(row: sqlite3.Row) -> KeptVersion:
    values = dict(row)
    own = {name: values.pop(name) for name in _OWN}
    return KeptVersion(VersionRow(**{**values, "resumable": bool(values["resumable"])}), **own)
