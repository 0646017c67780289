"""How the episodes of environments ended, and what the conformance checks found. Engine side.

With every heartbeat the engine adds counts of episodes by minute, environment and version. After an hour minutes are
summed to hours, and after a day they are removed. The last failure and the findings of each version are kept as well.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict

from sqlite_utils import Database

from ..environments import Counted, Finding, bounded
from .database import insert_all, transaction

KEPT = 20
"""Versions of an environment whose findings are kept, those checked last."""


class ConformanceTable:
    """Findings by environment and version."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def known(self, environment: str, version: str, base: str) -> bool:
        """Whether that version was checked with the base of that fingerprint."""
        sql = "SELECT 1 FROM conformance WHERE environment = ? AND version = ? AND base = ?"
        return self._db.execute(sql, [environment, version, base]).fetchone() is not None

    def add(self, environment: str, version: str, base: str, findings: Sequence[Finding]) -> None:
        """Store the findings of a version, within bounds, in place of its earlier ones."""
        row = {
            "environment": environment,
            "version": version,
            "base": base,
            "findings": json.dumps([asdict(finding) for finding in bounded(findings)]),
            "created": time.time(),
        }
        with transaction(self._db):
            insert_all(self._db, "conformance", [row], replace=True)
            self._db.execute(
                "DELETE FROM conformance WHERE environment = ? AND rowid NOT IN"
                " (SELECT rowid FROM conformance WHERE environment = ? ORDER BY created DESC, rowid DESC LIMIT ?)",
                [environment, environment, KEPT],
            )


MINUTE, HOUR, DAY = 60, 3600, 86400
LONGEST_MESSAGE = 1000
"""Characters of a failure's message that are stored."""

_ADD = (
    "INSERT INTO outcomes (begun, environment, version, status, bucket, episodes) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (begun, environment, version, status, bucket) DO UPDATE SET episodes = episodes + excluded.episodes"
)


class OutcomeTable:
    """Counts of episodes by how they ended, and the last failure of each environment version."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, counted: Counted, now: float | None = None) -> None:
        """Add to the counts of this minute; all of it or, with ``StoreError``, nothing."""
        if not counted.outcomes and not counted.failures:
            return
        now = time.time() if now is None else now
        begun = now // MINUTE * MINUTE
        rows = [(begun, one.environment, one.version, one.status, one.bucket, one.episodes) for one in counted.outcomes]
        failures = [
            {
                "environment": last.environment,
                "version": last.version,
                "message": last.failure.message[:LONGEST_MESSAGE],
                "file": last.failure.file,
                "line": last.failure.line,
                "created": now,
            }
            for last in counted.failures
        ]
        with transaction(self._db):
            self._db.conn.executemany(_ADD, rows)
            insert_all(self._db, "failures", failures, replace=True)

    def thin(self, now: float) -> None:
        """Sum minutes that are older than an hour to hours, and remove what is older than a day."""
        before = (now - HOUR) // HOUR * HOUR
        with transaction(self._db):
            for table, column in (("outcomes", "begun"), ("failures", "created")):
                self._db.execute(f"DELETE FROM {table} WHERE {column} < ?", [now - DAY])
            whole = f"CAST(begun / {HOUR} AS INT) * {HOUR}"
            rows = self._db.conn.execute(
                f"SELECT {whole}, environment, version, status, bucket, sum(episodes) FROM outcomes"
                f" WHERE begun < ? AND begun != {whole} GROUP BY 1, 2, 3, 4, 5",
                [before],
            ).fetchall()
            self._db.execute(f"DELETE FROM outcomes WHERE begun < ? AND begun != {whole}", [before])
            self._db.conn.executemany(_ADD, rows)
