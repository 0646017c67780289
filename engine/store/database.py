"""The engine's connection: opened with migrations applied, and with sqlite's complaints turned into sentences.

WAL mode, so that readers never wait. ``barrier`` makes what is committed survive a power cut; between barriers a
commit survives the death of any process. Another program's lock is waited for at most as long as the connection's
``patience``: where an event loop waits behind the connection, that is a moment (``Store.patiently`` waits beside it).
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from ..errors import DatabaseLocked, StoreError
from .copies import keep_copy
from .migrations import KNOWN_MIGRATIONS, migrations

OPENING = 30.0
"""Seconds for which another program's lock is waited for until ``patience`` is set."""
CHECKPOINT_PAGES = 16_384
"""Size of the write-ahead log from which a commit itself moves it into the database and waits for the disk. Far above
what gathers between two checkpoints: the event loop should not wait."""
LOG_BYTES = 64 * 1024 * 1024
"""What is left of a write-ahead log that has grown beyond it while a reader kept it from being begun anew."""
_LOCKED = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_READS = ("SELECT", "PRAGMA")


class GuardedConnection(sqlite3.Connection):
    """A connection whose errors are ``StoreError`` with a way out, wherever a statement is run.

    Once it has met a lock it waits for none any more, so that of many calls only the first costs its patience; the
    first write that succeeds gives it back.
    """

    met_lock = False
    """Whether the last write found the database locked."""
    _patience = OPENING

    def wait_for(self, seconds: float) -> None:
        """From now on, how long another program's lock is waited for."""
        self._patience = seconds
        self._wait(seconds)

    def is_free(self) -> bool:
        """Whether nobody else holds the lock; waits for nothing."""
        self._wait(0.0)
        try:
            self.execute("BEGIN IMMEDIATE")
            self.execute("ROLLBACK")
        except DatabaseLocked:
            return False
        self._wait(self._patience)
        return True

    def execute(self, *arguments: Any) -> sqlite3.Cursor:
        """As sqlite3's."""
        try:
            done = super().execute(*arguments)
        except sqlite3.Error as error:
            raise self._noted(error) from error
        if self.met_lock and not arguments[0].lstrip().startswith(_READS):
            self.met_lock = False
            self._wait(self._patience)
        return done

    def executemany(self, *arguments: Any) -> sqlite3.Cursor:
        """As sqlite3's."""
        try:
            return super().executemany(*arguments)
        except sqlite3.Error as error:
            raise self._noted(error) from error

    def _noted(self, error: sqlite3.Error) -> StoreError:
        explained = _explained(error)
        if isinstance(explained, DatabaseLocked):
            self.met_lock = True
            self._wait(0.0)
        return explained

    def _wait(self, seconds: float) -> None:
        super().execute(f"PRAGMA busy_timeout = {round(1000 * seconds)}")


def open_database(path: Path) -> Database:
    """Open or create the database of a home, with this program's schema: whoever calls it for another one holds the
    engine's lock. Raises ``StoreError``."""
    with guarded(), ExitStack() as undo:
        connection = sqlite3.connect(
            path, timeout=OPENING, isolation_level=None, check_same_thread=False, factory=GuardedConnection
        )
        undo.callback(connection.close)
        database = Database(connection)
        _check_schema(database, path)
        database.enable_wal()
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute(f"PRAGMA wal_autocheckpoint = {CHECKPOINT_PAGES}")
        connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
        migrations.apply(database)
        path.chmod(0o600)
        undo.pop_all()
    return database


def _check_schema(database: Database, path: Path) -> None:
    """Refuse a newer schema before anything is written, and keep a copy of an older one before it is changed."""
    done = [migration.name for migration in migrations.applied(database)]
    if not KNOWN_MIGRATIONS.issuperset(done):
        raise StoreError(f"The database {path} was made by a newer marlaas.", "Update marlaas, or use another --home.")
    if done and len(done) < len(KNOWN_MIGRATIONS):
        keep_copy(database.conn, path, done[-1])


def barrier(path: Path) -> None:
    """Bring everything that is committed to the disk, whoever reads meanwhile. Waits for it: give it a thread.

    A commit in WAL mode has appended its pages to the log, and with ``synchronous = NORMAL`` nothing has waited for
    the disk. So bringing the log there is what is missing, and is enough: the next program to open the database reads
    it from the log. No checkpoint is needed, which moves nothing while a reader looks at an older state.

    A log that was begun anew, or removed, between a commit and this call is no gap: sqlite does either only after a
    checkpoint has moved all of it into the database, and brings log and database to the disk for that. Descriptors of
    the log may come and go in this process; those of the database may not, for sqlite's locks would go with them.
    """
    for file in (path.with_name(f"{path.name}-wal"), path.parent):  # the folder, for the log's own entry
        try:
            descriptor = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            continue
        except OSError as error:
            raise StoreError(f"{file} cannot be brought to the disk: {error.strerror}.") from error
        try:
            os.fsync(descriptor)
        except OSError as error:
            raise StoreError(f"{file} cannot be brought to the disk: {error.strerror}.") from error
        finally:
            os.close(descriptor)


def checkpoint(path: Path) -> None:
    """Move the write-ahead log into the database as far as readers allow, so that the log can be begun anew.

    Waits for the disk, on a connection of its own: give it a thread. Where another connection is at it, that will do.
    """
    with guarded(), closing(sqlite3.connect(path, timeout=0, isolation_level=None)) as connection:
        connection.execute("PRAGMA wal_checkpoint(PASSIVE)")


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
    if getattr(error, "sqlite_errorcode", 0) & 0xFF in _LOCKED:
        return DatabaseLocked(f"Another program holds the database: {text}.", "It is tried again by itself.")
    if "full" in text or "disk I/O" in text:
        hint = "Free some space; nothing that was committed is lost."
    elif "malformed" in text or "not a database" in text:
        hint = "Move marlaas.db out of the home to begin anew; adapters/ keeps the trained adapters."
    else:
        hint = ""
    return StoreError(f"The database cannot be used: {text}.", hint)
