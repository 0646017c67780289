"""Whether a database has this program's schema: one cheap question, so that commands need not load what migrates it."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ..errors import StoreError

LATEST = "m023_reason_code"
"""The name of the last migration in ``migrations``."""


def read_only(database: Path) -> str:
    """The address at which sqlite opens a database for reading alone; a path may hold ``#``, ``?`` and ``%``."""
    return f"{database.absolute().as_uri()}?mode=ro"


def is_newer(connection: sqlite3.Connection) -> bool:
    """Whether a newer program has changed the schema: its migrations have higher numbers."""
    sql = "SELECT 1 FROM _sqlite_migrations WHERE migration_set = 'marlaas' AND name > ?"
    try:
        return connection.execute(sql, [LATEST]).fetchone() is not None
    except sqlite3.Error:  # no such table, or no database: whatever is wrong, it is not that
        return False


def newer() -> StoreError:
    """What to raise there."""
    return StoreError("A newer marlaas has changed the database.", "Update marlaas, or use another --home.")


def is_current(database: Path) -> bool:
    """Whether the database is there and all migrations were applied; a damaged one counts as not."""
    if not database.exists():
        return False
    try:
        with closing(sqlite3.connect(read_only(database), uri=True, timeout=5)) as connection:
            sql = "SELECT 1 FROM _sqlite_migrations WHERE migration_set = 'marlaas' AND name = ?"
            return connection.execute(sql, [LATEST]).fetchone() is not None
    except sqlite3.Error:
        return False
