"""The engine's connection: opened with migrations applied, and with sqlite's complaints turned into sentences.

WAL mode, so that readers never wait. ``barrier`` makes what is committed survive a power cut; between barriers a
commit survives the death of any process.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from ..errors import StoreError
from .migrations import KNOWN_MIGRATIONS, migrations

CHECKPOINT_RETRY = 0.005
"""Seconds after which a barrier that met another one tries again."""
CHECKPOINT_PAGES = 16_384
"""Size of the write-ahead log from which a commit itself moves it into the database and waits for the disk. Far above
what gathers between two barriers: the event loop should not wait."""


class GuardedConnection(sqlite3.Connection):
    """A connection whose errors are ``StoreError`` with a way out, wherever a statement is run."""

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """As sqlite3's."""
        try:
            return super().execute(*arguments)
        except sqlite3.Error as error:
            raise _explained(error) from error

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        """As sqlite3's."""
        try:
            return super().executemany(*arguments)
        except sqlite3.Error as error:
            raise _explained(error) from error


def open_database(path: Path) -> Database:
    """Open or create the database of a home. Raises ``StoreError``."""
    with guarded():
        connection = sqlite3.connect(
            path, timeout=30, isolation_level=None, check_same_thread=False, factory=GuardedConnection
        )
        database = Database(connection)
        database.enable_wal()
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        migrations.apply(database)
    if {done.name for done in migrations.applied(database)} - KNOWN_MIGRATIONS:
        raise StoreError(f"The database {path} was made by a newer marlaas.", "Update marlaas, or use another --home.")
    path.chmod(0o600)
    return database


def barrier(path: Path) -> None:
    """Bring the write-ahead log to the disk. Waits for it, on a connection of its own: give it a thread."""
    with guarded(), closing(sqlite3.connect(path, timeout=30, isolation_level=None)) as connection:
        while connection.execute("PRAGMA wal_checkpoint(PASSIVE)").fetchone()[0]:
            time.sleep(CHECKPOINT_RETRY)  # another connection is at it: what it began before does not hold our commits


@contextmanager
def transaction(database: Database) -> Iterator[None]:
    """All or nothing. Takes the write lock at once: a transaction that reads first and is overtaken by another
    process before it writes would fail however long it is ready to wait."""
    database.conn.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.conn.execute("COMMIT")
    except BaseException:
        if database.conn.in_transaction:  # a full disk makes sqlite roll back by itself
            database.conn.execute("ROLLBACK")
        raise


def insert(database: Database, table: str, row: Mapping[str, Any]) -> int:
    """Insert one row and return its key."""
    key = database.conn.execute(_insertion(table, tuple(row)), tuple(row.values())).lastrowid
    if key is None:
        raise StoreError(f"The table {table} gave no number to a new row.")
    return key


def insert_all(database: Database, table: str, rows: Iterable[Mapping[str, Any]], replace: bool = False) -> None:
    """Insert many rows of the same columns; with ``replace`` those of the same key go."""
    rows = list(rows)
    if rows:
        statement = _insertion(table, tuple(rows[0]), "REPLACE" if replace else "INSERT")
        database.conn.executemany(statement, [tuple(row.values()) for row in rows])


@cache
def _insertion(table: str, columns: tuple[str, ...], verb: str = "INSERT") -> str:
    """Plain SQL, several times faster than sqlite-utils, which looks the table up for every row."""
    names, marks = ", ".join(f'"{name}"' for name in columns), ", ".join("?" * len(columns))
    return f'{verb} INTO "{table}" ({names}) VALUES ({marks})'


@contextmanager
def guarded() -> Iterator[None]:
    """Turn sqlite's errors into ``StoreError`` with a way out."""
    try:
        yield
    except sqlite3.Error as error:
        raise _explained(error) from error


def _explained(error: sqlite3.Error) -> StoreError:
    text = str(error)
    if "full" in text or "disk I/O" in text:
        hint = "Free some space; nothing that was committed is lost."
    elif "malformed" in text or "not a database" in text:
        hint = "Move marlaas.db out of the home to begin anew; adapters/ keeps the trained adapters."
    else:
        hint = ""
    return StoreError(f"The database cannot be used: {text}.", hint)
