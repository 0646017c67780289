"""The engine's connection.

WAL mode: readers never wait. Commits survive the death of any process; after ``barrier`` also a power cut.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlite_utils import Database
from sqlite_utils.migrations import Migrations

from marlaas.plugins.durable import to_disk

from ..errors import DatabaseLocked, StoreError
from .schema import FIRST, LATEST, TABLES, UPGRADE, applied, explained, guarded, keep_copy, refuse_newer

OPENING = 30.0
"""Seconds of a wait for a lock before ``wait_for`` is called."""
CHECKPOINT_PAGES = 16_384
"""Log pages at which a commit makes a checkpoint and waits for the disk. Far above the growth between two
``checkpoint`` calls: the event loop should not wait."""
LOG_BYTES = 64 * 1024 * 1024
"""A larger log is cut; it grows while a reader prevents its reset."""
_READS = ("SELECT", "PRAGMA")
migrations = Migrations("marlaas")


class GuardedConnection(sqlite3.Connection):
    """Raises ``StoreError`` instead of sqlite's errors.

    After a vain wait for a lock, calls do not wait until a write succeeds.
    """

    met_lock = False
    _patience = OPENING

    def wait_for(self, seconds: float) -> None:
        self._patience = seconds
        self._wait(seconds)

    def is_free(self) -> bool:
        self._wait(0.0)
        try:
            self.execute("BEGIN IMMEDIATE")
            self.execute("ROLLBACK")
        except DatabaseLocked:
            return False
        self._wait(self._patience)
        return True

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        try:
            cursor = super().execute(*arguments)
        except sqlite3.Error as error:
            raise self._explained(error) from error
        if self.met_lock and not arguments[0].lstrip().startswith(_READS):
            self.met_lock = False
            self._wait(self._patience)
        return cursor

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        try:
            return super().executemany(*arguments)
        except sqlite3.Error as error:
            raise self._explained(error) from error

    def _explained(self, error: sqlite3.Error) -> StoreError:
        failure = explained(error)
        if isinstance(failure, DatabaseLocked):
            self.met_lock = True
            self._wait(0.0)
        return failure

    def _wait(self, seconds: float) -> None:
        super().execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")


class StoreDatabase(Database):
    """sqlite-utils' database with plain queries."""

    def query(
        self, sql: str, params: Sequence[Any] | dict[str, Any] | None = None
    ) -> Generator[dict[str, Any], None, None]:
        """Read-only; column names must differ.

        sqlite-utils makes a savepoint: three statements instead of one.
        """
        cursor = self.conn.execute(sql, params or ())
        names = [column[0] for column in cursor.description]
        return (dict(zip(names, row, strict=True)) for row in cursor)


class Table:
    """Every method is one short transaction."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def _replace(self, table: str, rows: Iterable[Mapping[str, Any]]) -> None:
        with transaction(self._db):
            self._db.execute(f"DELETE FROM {table}")
            insert_all(self._db, table, rows)


def open_database(path: Path) -> Database:
    """Open or create, and migrate. Raises ``StoreError``.

    To migrate, the caller must hold the engine's lock.
    """
    with guarded(), ExitStack() as undo:
        connection = sqlite3.connect(
            path, timeout=OPENING, isolation_level=None, check_same_thread=False, factory=GuardedConnection
        )
        undo.callback(connection.close)
        refuse_newer(connection)
        schema = applied(connection)
        if schema not in ("", FIRST, LATEST):
            raise StoreError(
                "the database was made by an unreleased marlaas before 0.2.0.",
                "Start an engine of the newest of these versions once, or use another --home.",
                where=str(path),
            )
        if schema == FIRST:
            keep_copy(connection, path, schema)
        database = StoreDatabase(connection)
        database.enable_wal()
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        migrations.apply(database)
        path.chmod(0o600)
        undo.pop_all()
    return database


@migrations(name=FIRST)
def create(database: Database) -> None:
    """Make all tables."""
    _run(database, TABLES)


@migrations(name=LATEST)
def upgrade(database: Database) -> None:
    """Upgrade version 0.1.0."""
    if "kind" not in database.table("tasks").columns_dict:
        _run(database, UPGRADE)


def _run(database: Database, script: str) -> None:
    """``executescript`` would commit the caller's transaction."""
    statement = ""
    for line in script.splitlines(keepends=True):
        statement += line
        if sqlite3.complete_statement(statement):
            database.execute(statement)
            statement = ""


def barrier(path: Path) -> None:
    """Flush all commits to the disk. Blocks: call it in a thread.

    With ``synchronous = NORMAL`` a WAL commit does not wait for the disk. Flushing the log is enough; a checkpoint
    would wait for readers.

    A reset log does no harm: sqlite first flushes a checkpoint. Closing the database file here would release sqlite's
    locks.
    """
    for file in (path.with_name(f"{path.name}-wal"), path.parent):  # the folder, for the log's own entry
        try:
            to_disk(file)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreError(f"cannot be brought to the disk: {error.strerror}.", where=str(file)) from error


def checkpoint(path: Path) -> None:
    """Move the log into the database as far as readers allow. Blocks: call it in a thread.

    Does nothing during another connection's checkpoint.
    """
    with guarded(), closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


@contextmanager
def transaction(database: Database) -> Iterator[None]:
    """All or nothing.

    Takes the write lock at once: after a read, another process's write would make it fail.
    """
    database.conn.execute("BEGIN IMMEDIATE")
    try:
        yield
        database.conn.execute("COMMIT")
    except BaseException:
        if database.conn.in_transaction:  # a full disk makes sqlite roll back by itself
            database.conn.execute("ROLLBACK")
        raise


def insert(database: Database, table: str, row: Mapping[str, Any]) -> int:
    """Returns the key."""
    key = database.conn.execute(_insertion(table, tuple(row)), tuple(row.values())).lastrowid
    assert key is not None, "an INSERT has a key"
    return key


def insert_all(database: Database, table: str, rows: Iterable[Mapping[str, Any]], replace: bool = False) -> None:
    """Rows of the same columns; ``replace``: those of the same keys."""
    rows = list(rows)
    if rows:
        database.conn.executemany(
            _insertion(table, tuple(rows[0]), "REPLACE" if replace else "INSERT"), [tuple(row.values()) for row in rows]
        )


@cache
def _insertion(table: str, columns: tuple[str, ...], verb: str = "INSERT") -> str:
    """sqlite-utils is several times slower: it reads the schema for every row."""
    names, marks = ", ".join(f'"{name}"' for name in columns), ", ".join("?" * len(columns))
    return f'{verb} INTO "{table}" ({names}) VALUES ({marks})'
