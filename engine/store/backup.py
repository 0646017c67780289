"""Copies of a home's database, for upgrades and for backups while an engine writes. Standard library only.

The caller copies state files; a copy's rows name them relative to the home.
"""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path, PurePosixPath

from marlaas.plugins.durable import to_disk

from ..errors import StoreError
from .schema import guarded, read_only, refuse_newer

FOLDER = "backups"
"""Folder of copies from before an upgrade. A person may put one back, with the marlaas that made it."""
PAGES = 2_000
_PLACE = "CASE WHEN path LIKE '/%' THEN 'adapters/' || name || '.safetensors' ELSE path END"
"""SQL for a version's path relative to the home; rows of version 0.1.0 hold an absolute path."""


def keep_copy(connection: sqlite3.Connection, database: Path, schema: str) -> None:
    """Copy a database before its tables change; others may use it meanwhile. Raises ``StoreError``.

    The copy is named by ``schema`` and the time.
    """
    folder = database.absolute().parent / FOLDER
    unfinished = folder / "unfinished.part"
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        os.close(os.open(unfinished, os.O_CREAT | os.O_WRONLY | os.O_TRUNC | os.O_CLOEXEC, 0o600))
        with closing(sqlite3.connect(unfinished)) as target:
            connection.backup(target)
        to_disk(unfinished)
        unfinished.replace(folder / f"{schema}-{time.strftime('%Y%m%d-%H%M%S')}.db")
        to_disk(folder)
    except (OSError, sqlite3.Error) as error:
        with suppress(OSError):
            unfinished.unlink()
        why = getattr(error, "strerror", None) or str(error)
        raise StoreError(
            f"the database is of an older marlaas, and no copy of it could be made in {folder}: {why}.",
            "Nothing was changed; the copy needs as much room as the database.",
            where=str(database),
        ) from error


class Held:
    """A snapshot of a database, held by an open read transaction; an engine may commit meanwhile."""

    def __init__(self, database: Path) -> None:
        with guarded():
            self._connection = sqlite3.connect(read_only(database), uri=True, timeout=30, isolation_level=None)

    def __enter__(self) -> Held:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def renew(self) -> list[str]:
        """Take a new snapshot; returns the files of its committed versions, relative to the home.

        Raises ``StoreError`` also for a newer marlaas, and for names that lead out of a home.
        """
        with guarded():
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN")
            _check(self._connection)
            rows = self._connection.execute(f"SELECT {_PLACE} FROM versions WHERE state = 'committed' ORDER BY id")
            return [place for (place,) in rows]

    def size(self) -> int:
        with guarded():
            sql = "SELECT page_count * page_size FROM pragma_page_count(), pragma_page_size()"
            return int(self._connection.execute(sql).fetchone()[0])

    def copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
        """Write the snapshot into a new file; ``progress`` gets the bytes done and in all."""
        size = self.size()

        def report(status: int, remaining: int, pages: int) -> None:
            progress(size - remaining * (size // max(1, pages)), size)

        with guarded(), closing(sqlite3.connect(target, isolation_level=None)) as copy:
            copy.execute("PRAGMA locking_mode = EXCLUSIVE")  # no shared memory: not every disk has it
            self._connection.backup(copy, pages=PAGES, progress=report)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a write-ahead log
            copy.execute(f"UPDATE versions SET path = {_PLACE}")


def check_copy(database: Path) -> int:
    """Check that a copy may be restored; returns its number of tasks.

    Raises ``StoreError`` if it is damaged, made by a newer marlaas, or names files outside of a home.
    """
    with guarded(), closing(sqlite3.connect(f"{read_only(database)}&immutable=1", uri=True)) as connection:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreError(f"The database in the backup is damaged: {verdict}.")
        _check(connection)
        return int(connection.execute("SELECT count(*) FROM tasks").fetchone()[0])


def _check(connection: sqlite3.Connection) -> None:
    refuse_newer(connection)
    for (place,) in connection.execute(f"SELECT DISTINCT {_PLACE} FROM versions"):
        parts = PurePosixPath(place).parts
        if not parts or parts[0] != "adapters" or ".." in parts:
            raise StoreError(f"The database names a state file outside of its home: {place!r}.")
