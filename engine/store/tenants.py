"""Tenants: weight (share of the machine), quotas, use by tasks and clients, and the clients' keys and versions.

Weights and quotas are cached, because only this engine writes them. The default is weight 1 without a quota. Days are
in UTC; use just before midnight may count for the next day.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, astuple, dataclass, replace
from typing import Any

from sqlite_utils import Database

from ..clock import wall_time
from ..errors import ConfigError
from ..fairness import Usage
from ..home import Home
from .database import Table, insert_all, transaction
from .queries.reader import KEYS, api_row, key_row
from .rows import ApiKeyRow, ApiRow, VersionRow, day_of


@dataclass(frozen=True)
class Tenant:
    """Weight and quotas of one tenant."""

    weight: float = 1.0
    """Its share of the machine under contention, relative to the other tenants' weights; above 0."""
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
        return self._known.get(name, USUAL)

    def set(self, name: str, **changes: float) -> Tenant:
        tenant = replace(self.get(name), **changes)  # type: ignore[arg-type]
        with transaction(self._db):
            row = {"name": name, "created": wall_time(), **asdict(tenant)}
            insert_all(self._db, "tenants", [row], replace=True)
        self._known[name] = tenant
        return tenant


class UsageTable:
    """The sums of use by tasks and clients, for quotas."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._clients: list[str] = []
        """Tenants with an account for clients; the first has the number -1, the next -2."""

    def clients(self, tenant: str) -> int:
        """The negative task number for the use of a tenant's clients in the ledger, constant for this engine."""
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


# Tables of the API: keys by their hashes, their use, and its state. Engine side.


@dataclass(frozen=True)
class KeyUse:
    """The use of a key since its last write."""

    key: int
    requests: int
    tokens_in: int
    tokens_out: int
    last: float
    """Time of the newest request, in seconds since 1970."""


class ApiTable(Table):
    """Reads keys made and revoked by other processes; writes their use, and the state of the API."""

    def key(self, digest: bytes) -> ApiKeyRow | None:
        for row in self._db.query(f"{KEYS} WHERE hash = ?", [digest]):
            return key_row(row)
        return None

    def any_key(self) -> bool:
        return self._db.conn.execute("SELECT 1 FROM api_keys WHERE revoked IS NULL LIMIT 1").fetchone() is not None

    def add_use(self, uses: Iterable[KeyUse]) -> None:
        with transaction(self._db):
            self._db.conn.executemany(
                "UPDATE api_keys SET requests = requests + ?, tokens_in = tokens_in + ?, tokens_out = tokens_out + ?,"
                " last_use = max(coalesce(last_use, 0), ?) WHERE id = ?",
                [(use.requests, use.tokens_in, use.tokens_out, use.last, use.key) for use in uses],
            )

    def state(self) -> ApiRow:
        for row in self._db.query("SELECT * FROM api"):
            return api_row(row)
        return ApiRow()

    def switch(self, on: bool, port: int | None = None) -> None:
        """Store that a person started or stopped it, for this engine and the next ones."""
        self._write(replace(self.state(), switched=on, port=port))

    def tell(self, is_open: bool, url: str = "", note: str = "") -> None:
        self._write(replace(self.state(), open=is_open, url=url, note=note, since=wall_time()))

    def _write(self, row: ApiRow) -> None:
        insert_all(self._db, "api", [{"id": 1, **asdict(row)}], replace=True)


# Versions for clients, the tenants' names for them, and files that are in use.
#
# Engine side. Every read names the tenant: nobody sees another's.

MOST_NAMES = 1000
_COLUMNS = """v.id, t.id AS task, t.tenant, t.name AS task_name, p.name AS policy, v.number, v.name, v.state, v.label,
v.checksum, v.path, v.size, v.created, v.resumable"""
_VERSIONS = f"""SELECT {_COLUMNS} FROM tasks t JOIN policies p ON p.task = t.id JOIN versions v ON v.policy = p.id
WHERE t.tenant = ? AND t.base IN ('', ?) AND v.state = 'committed'"""


class ServedTable:
    """Reads of versions for clients, and the names of versions."""

    def __init__(self, database: Database, home: Home, fingerprint: str) -> None:
        self._db = database
        self._home = home
        self._fingerprint = fingerprint
        self._holders: Counter[int] = Counter()

    def versions(self, tenant: str, task: int | None = None) -> list[VersionRow]:
        """A tenant's versions with files on the disk, newest first, without scores; ``task``: only of this one.

        Raises ``AdapterUnreachable`` if a file would lie outside of the home.
        """
        sql = f"{_VERSIONS} AND t.id = coalesce(?, t.id) ORDER BY t.id DESC, v.number DESC"
        return [self._row(row) for row in self._db.query(sql, [tenant, self._fingerprint, task])]

    def named(self, tenant: str, name: str) -> tuple[VersionRow | None, bool]:
        """The version of that name, None if its file is gone; and True if the tenant has given the name."""
        sql = "SELECT version FROM adapter_names WHERE tenant = ? AND name = ?"
        for found in self._db.query(sql, [tenant, name]):
            rows = self._db.query(f"{_VERSIONS} AND v.id = ?", [tenant, self._fingerprint, found["version"]])
            return next((self._row(row) for row in rows), None), True
        return None, False

    def names(self, tenant: str) -> dict[str, int]:
        rows = self._db.query("SELECT name, version FROM adapter_names WHERE tenant = ? ORDER BY name", [tenant])
        return {row["name"]: row["version"] for row in rows}

    def give(self, tenant: str, name: str, version: int) -> None:
        """Let a name mean a version of the tenant. Raises ``ConfigError`` beyond ``MOST_NAMES``."""
        known = self.names(tenant)
        if name not in known and len(known) >= MOST_NAMES:
            raise ConfigError(f"Tenant {tenant!r} has {len(known)} names already.", "Remove some with --remove.")
        with transaction(self._db):
            self._db.execute(
                "INSERT INTO adapter_names (tenant, name, version, created) VALUES (?, ?, ?, ?)"
                " ON CONFLICT (tenant, name) DO UPDATE SET version = excluded.version, created = excluded.created",
                [tenant, name, version, wall_time()],
            )

    def take(self, tenant: str, name: str) -> bool:
        with transaction(self._db):
            sql = "DELETE FROM adapter_names WHERE tenant = ? AND name = ?"
            return bool(self._db.execute(sql, [tenant, name]).rowcount)

    def numbers(self, policy: int) -> dict[int, str]:
        """Numbers of a policy's named versions, each with one of its names."""
        sql = "SELECT v.number, n.name FROM adapter_names n JOIN versions v ON v.id = n.version WHERE v.policy = ?"
        return {row["number"]: row["name"] for row in self._db.query(f"{sql} AND v.state = 'committed'", [policy])}

    @contextmanager
    def hold(self, version: int) -> Iterator[None]:
        """Keep the file of a version, by its id, while the block runs; 0 is none."""
        self._holders[version] += 1
        try:
            yield
        finally:
            self._holders[version] -= 1
            if not self._holders[version]:
                del self._holders[version]

    def holds(self, version: int) -> bool:
        return version in self._holders

    def _row(self, row: dict[str, Any]) -> VersionRow:
        path, resumable = str(self._home.file(row["path"])), bool(row["resumable"])
        return VersionRow(**{**row, "path": path, "resumable": resumable, "score": None})
