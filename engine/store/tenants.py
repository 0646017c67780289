"""Tenants: each one's weight, which is its share of the machine, and its quotas. Engine side.

They are read from memory, because only this engine writes the table. A tenant that nobody set up has weight 1 and no
quota.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace

from sqlite_utils import Database

from .database import insert_all, transaction


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
            row = {"name": name, "created": time.time(), **asdict(tenant)}
            insert_all(self._db, "tenants", [row], replace=True)
        self._known[name] = tenant
        return tenant
