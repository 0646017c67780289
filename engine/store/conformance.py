"""What checks found of environments, by version. Engine side.

Findings flow in once for each version and base; the reader shows those of the version that serves.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import asdict

from sqlite_utils import Database

from ..environments.conformance.finding import Finding, bounded
from .database import insert_all, transaction

KEPT = 20
"""Versions of an environment whose findings are kept, the last checked ones."""


class ConformanceTable:
    """Findings by environment and version."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def known(self, environment: str, version: str, base: str) -> bool:
        """Whether that version was checked for that base, a fingerprint."""
        sql = "SELECT 1 FROM conformance WHERE environment = ? AND version = ? AND base = ?"
        return self._db.execute(sql, [environment, version, base]).fetchone() is not None

    def add(self, environment: str, version: str, base: str, findings: Sequence[Finding]) -> None:
        """Keep what was found, within bounds, in place of what was found of that version before."""
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
