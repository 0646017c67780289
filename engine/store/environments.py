"""How the episodes of environments ended, what the checks found, and which of them only fail. Engine side.

With every heartbeat the engine adds counts of episodes by minute, environment and version. After an hour minutes are
summed to hours, and after a day they are removed. The last failure and the findings of each version are kept as well.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict

from sqlite_utils import Database

from ..clock import wall_time
from ..environments import Counted, Finding, Standstill, bounded
from ..trajectories import Failure
from .database import insert_all, transaction

MINUTE, HOUR, DAY = 60, 3600, 86400
FAILING_KEPT = 30 * DAY
"""Seconds after which it is forgotten that a version only failed, where no engine has served it since."""
LONGEST_MESSAGE = 1000
"""Characters of a failure's message that are stored."""
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
            "created": wall_time(),
        }
        with transaction(self._db):
            insert_all(self._db, "conformance", [row], replace=True)
            self._db.execute(
                "DELETE FROM conformance WHERE environment = ? AND rowid NOT IN"
                " (SELECT rowid FROM conformance WHERE environment = ? ORDER BY created DESC, rowid DESC LIMIT ?)",
                [environment, environment, KEPT],
            )


MINUTE, HOUR, DAY = 60, 3600, 86400


class FailingTable:
    """Parameters under which environment versions have only failed, by plugin and version."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def all(self) -> dict[tuple[str, str], list[Standstill]]:
        """What is known of each plugin and version."""
        rows = self._db.conn.execute(
            "SELECT plugin, version, environment, parameters, message, file, line, rest FROM failing"
        )
        found: defaultdict[tuple[str, str], list[Standstill]] = defaultdict(list)
        for plugin, version, environment, parameters, message, file, line, rest in rows:
            standstill = Standstill((environment, parameters), Failure(message, file, line), rest)
            found[plugin, version].append(standstill)
        return found

    def replace(self, plugin: str, version: str, standstills: Sequence[Standstill], now: float | None = None) -> None:
        """Store what is known of a version in place of what was; other versions' rows go after ``FAILING_KEPT``."""
        now = wall_time() if now is None else now
        rows = [
            {
                "plugin": plugin,
                "version": version,
                "environment": one.settings[0],
                "parameters": one.settings[1],
                "message": one.failure.message[:LONGEST_MESSAGE],
                "file": one.failure.file,
                "line": one.failure.line,
                "rest": one.rest,
                "created": now,
            }
            for one in standstills
        ]
        with transaction(self._db):
            gone = [plugin, version, now - FAILING_KEPT]
            self._db.execute("DELETE FROM failing WHERE (plugin = ? AND version = ?) OR created < ?", gone)
            insert_all(self._db, "failing", rows)


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
        now = wall_time() if now is None else now
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
