"""What clients are served: versions of a tenant's tasks, the names that it gave them, and files that stay meanwhile.

Engine side. Every read names the tenant: nobody sees another's.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from sqlite_utils import Database

from ...clock import wall_time
from ...errors import ConfigError
from ...home import Home
from ..database import transaction
from ..rows import VersionRow

MOST_NAMES = 1000
"""Names that a tenant may give."""
_COLUMNS = """v.id, t.id AS task, t.tenant, t.name AS task_name, p.name AS policy, v.number, v.name, v.state, v.label,
v.checksum, v.path, v.size, v.created, v.resumable"""
_VERSIONS = f"""SELECT {_COLUMNS} FROM tasks t JOIN policies p ON p.task = t.id JOIN versions v ON v.policy = p.id
WHERE t.tenant = ? AND t.base IN ('', ?) AND v.state = 'committed'"""


class ServedTable:
    """Reads of versions for clients, and the names of versions."""

    def __init__(self, database: Database, home: Home, fingerprint: str) -> None:
        """``fingerprint`` is that of the base that is served: versions of others are left out."""
        self._db = database
        self._home = home
        self._fingerprint = fingerprint
        self._holders: Counter[int] = Counter()
        """How many use a version, by its id."""

    def versions(self, tenant: str, task: int | None = None) -> list[VersionRow]:
        """A tenant's versions whose files are on the disk, newest first; without scores. ``task``: of this one alone.

        Raises ``AdapterUnreachable`` where a file would lie outside of the home.
        """
        sql = f"{_VERSIONS} AND t.id = coalesce(?, t.id) ORDER BY t.id DESC, v.number DESC"
        return [self._row(row) for row in self._db.query(sql, [tenant, self._fingerprint, task])]

    def named(self, tenant: str, name: str) -> tuple[VersionRow | None, bool]:
        """The version of that name, None where its file is gone; and whether the tenant has given the name."""
        sql = "SELECT version FROM adapter_names WHERE tenant = ? AND name = ?"
        for found in self._db.query(sql, [tenant, name]):
            rows = self._db.query(f"{_VERSIONS} AND v.id = ?", [tenant, self._fingerprint, found["version"]])
            return next((self._row(row) for row in rows), None), True
        return None, False

    def names(self, tenant: str) -> dict[str, int]:
        """All names that a tenant has given, with the ids of their versions."""
        rows = self._db.query("SELECT name, version FROM adapter_names WHERE tenant = ? ORDER BY name", [tenant])
        return {row["name"]: row["version"] for row in rows}

    def give(self, tenant: str, name: str, version: int) -> None:
        """Let a name mean a version of the tenant's, whatever it meant before. Raises ``ConfigError`` beyond
        ``MOST_NAMES``."""
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
        """Take a name away; returns whether there was one."""
        with transaction(self._db):
            sql = "DELETE FROM adapter_names WHERE tenant = ? AND name = ?"
            return bool(self._db.execute(sql, [tenant, name]).rowcount)

    def numbers(self, policy: int) -> dict[int, str]:
        """Numbers of a policy's versions that have names, each with one of these."""
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
        """Whether a client is being served with a version."""
        return version in self._holders

    def _row(self, row: dict[str, Any]) -> VersionRow:
        path, resumable = str(self._home.file(row["path"])), bool(row["resumable"])
        return VersionRow(**{**row, "path": path, "resumable": resumable, "score": None})
