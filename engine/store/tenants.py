"""Tenants: each one's weight, which is its share of the machine, its quotas, and what its tasks have used. Engine side.

Weights and quotas are read from memory, because only this engine writes the table. A tenant that nobody set up has
weight 1 and no quota. Days are in UTC; what is used just before midnight may count for the next day.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, astuple, dataclass, replace

from sqlite_utils import Database

from ..clock import wall_time
from ..fairness import Usage
from .database import insert_all, transaction
from .days import day_of


@dataclass(frozen=True)
class Tenant:
    """Weight and quotas of one tenant."""

    weight: float = 1.0
    """Its share of the machine under contention, in relation to the other tenants' weights; above 0."""
    tasks: int = 0
    """Tasks that may run at the same time; 0: as many as there are slots."""
    tokens_per_day: int = 0
    """Tokens that its tasks may use in a day (UTC); 0: no quota."""


USUAL = Tenant()


class TenantTable:
    """Reads and writes of tenants."""

    def __init__(self, database: Database) -> None:
        self._db = database
        rows = database.query("SELECT name, weight, tasks, tokens_per_day FROM tenants")
        self._known = {row.pop("name"): Tenant(**row) for row in rows}

    def get(self, name: str) -> Tenant:
        """A tenant's weight and quotas, from memory."""
        return self._known.get(name, USUAL)

    def set(self, name: str, **changes: float) -> Tenant:
        """Change some of a tenant's weight and quotas, and return all of them."""
        tenant = replace(self.get(name), **changes)  # type: ignore[arg-type]
        with transaction(self._db):
            row = {"name": name, "created": wall_time(), **asdict(tenant)}
            insert_all(self._db, "tenants", [row], replace=True)
        self._known[name] = tenant
        return tenant


class UsageTable:
    """The sums of what tasks and clients have used, from which quotas are checked."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._clients: list[str] = []
        """Tenants whose clients have an account; the first has the number -1, the next -2."""

    def clients(self, tenant: str) -> int:
        """The number below 0 under which the ledger counts what a tenant's clients use, as if they were a task.

        It is the same for as long as this engine runs.
        """
        if tenant not in self._clients:
            self._clients.append(tenant)
        return -1 - self._clients.index(tenant)

    def add(self, usages: Iterable[Usage]) -> None:
        """Add to today's sums; all of it or, with ``StoreError``, nothing."""
        day = today()
        tasks, clients = [], []
        for usage in usages:
            if usage.task < 0:
                clients.append((day, self._clients[-1 - usage.task], usage.tokens, usage.seconds))
            else:
                tasks.append((day, *astuple(usage)))
        if not tasks and not clients:
            return
        more = "DO UPDATE SET tokens = tokens + excluded.tokens, seconds = seconds + excluded.seconds"
        with transaction(self._db):
            self._db.conn.executemany(
                "INSERT INTO usage (day, task, stage, tokens, seconds) VALUES (?, ?, ?, ?, ?)"
                f" ON CONFLICT (day, task, stage) {more}",
                tasks,
            )
            self._db.conn.executemany(
                "INSERT INTO served_usage (day, tenant, tokens, seconds) VALUES (?, ?, ?, ?)"
                f" ON CONFLICT (day, tenant) {more}",
                clients,
            )

    def tokens_today(self) -> Mapping[str, int]:
        """Tokens that each tenant's tasks and clients have used today; tenants without any are missing."""
        rows = self._db.query(
            "SELECT tenant, sum(tokens) AS tokens FROM"
            " (SELECT t.tenant, u.tokens FROM usage u JOIN tasks t ON t.id = u.task WHERE u.day = ?"
            " UNION ALL SELECT tenant, tokens FROM served_usage WHERE day = ?)"
            " GROUP BY tenant HAVING sum(tokens) > 0",
            [today(), today()],
        )
        return {row["tenant"]: row["tokens"] for row in rows}


def today() -> str:
    """The current day in UTC: 2026-11-21."""
    return day_of(wall_time())
