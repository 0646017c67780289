"""Whether a database has this program's schema: a cheap check, so that commands need not load the migrations."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ...errors import StoreError

LATEST = "m045_resumed"
"""The name of the last migration."""


def read_only(database: Path) -> str:
    """The URI at which sqlite opens a database read-only; the path may hold ``#``, ``?`` and ``%``."""
    return f"{database.absolute().as_uri()}?mode=ro"


def is_newer(connection: sqlite3.Connection) -> bool:
    """Whether a newer program has changed the schema: its migrations have higher numbers."""
    sql = "SELECT 1 FROM _sqlite_migrations WHERE migration_set = 'marlaas' AND name > ?"
    try:
        return connection.execute(sql, [LATEST]).fetchone() is not None
    except sqlite3.Error:  # no such table, or no database: in any case not a newer schema
        return False


def newer() -> StoreError:
    """The error for a database with a newer schema."""
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
