"""What tasks have used of each stage, by day: the ledger's rows. Engine side.

Days are in UTC. What is used in the second before midnight may count for the next day, when it is written.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from dataclasses import astuple

from sqlite_utils import Database

from ..fairness import Usage
from .database import transaction
from .days import day_of


class UsageTable:
    """The sums of what tasks have used, from which quotas are checked."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, usages: Iterable[Usage]) -> None:
        """Add to today's sums; all of it or, with ``StoreError``, nothing."""
        day = today()
        rows = [(day, *astuple(usage)) for usage in usages]
        if not rows:
            return
        with transaction(self._db):
            self._db.conn.executemany(
                "INSERT INTO usage (day, task, stage, tokens, seconds) VALUES (?, ?, ?, ?, ?)"
                " ON CONFLICT (day, task, stage)"
                " DO UPDATE SET tokens = tokens + excluded.tokens, seconds = seconds + excluded.seconds",
                rows,
            )

    def tokens_today(self) -> Mapping[str, int]:
        """Tokens that each tenant's tasks have used today, over all stages; tenants without any are missing."""
        rows = self._db.query(
            "SELECT t.tenant, sum(u.tokens) AS tokens FROM usage u JOIN tasks t ON t.id = u.task"
            " WHERE u.day = ? GROUP BY t.tenant HAVING sum(u.tokens) > 0",
            [today()],
        )
        return {row["tenant"]: row["tokens"] for row in rows}


def today() -> str:
    """The current day in UTC: 2026-11-21."""
    return day_of(time.time())
