"""Copies of a home's database for backups: a snapshot taken while an engine writes, and the check before a restore.

A copy's rows name state files relative to the home. The state files themselves are copied by the caller.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import closing
from pathlib import Path, PurePosixPath
from types import TracebackType

from ...errors import StoreError
from .connection import guarded
from .schema import is_newer, newer, read_only

PAGES = 2_000
"""Pages copied at once; progress is reported after each batch."""
_PLACE = "CASE WHEN path LIKE '/%' THEN 'adapters/' || name || '.safetensors' ELSE path END"
"""SQL for the path of a version's file relative to the home; older rows hold an absolute path."""


class Held:
    """A snapshot of a database, by an open read transaction; an engine may go on committing."""

    def __init__(self, database: Path) -> None:
        with guarded():
            self._connection = sqlite3.connect(read_only(database), uri=True, timeout=30, isolation_level=None)

    def __enter__(self) -> Held:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._connection.close()

    def renew(self) -> list[str]:
        """Take a new snapshot in place of the old one, and return its committed versions' files, relative to the home.

        Raises ``StoreError`` also for a database of a newer marlaas, and for names that lead out of a home.
        """
        with guarded():
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            self._connection.execute("BEGIN")
            _check(self._connection)
            rows = self._connection.execute(f"SELECT {_PLACE} FROM versions WHERE state = 'committed' ORDER BY id")
            return [place for (place,) in rows]

    def size(self) -> int:
        """Bytes of a copy."""
        with guarded():
            (pages,) = self._connection.execute("PRAGMA page_count").fetchone()
            (each,) = self._connection.execute("PRAGMA page_size").fetchone()
        return int(pages) * int(each)

    def copy(self, target: Path, progress: Callable[[int, int], None]) -> None:
        """Write the snapshot into a new file; ``progress`` is called with the bytes done and the bytes in all."""
        whole = self.size()

        def tell(status: int, left: int, pages: int) -> None:
            progress(whole - left * (whole // max(1, pages)), whole)

        with guarded(), closing(sqlite3.connect(target, isolation_level=None)) as copy:
            copy.execute("PRAGMA locking_mode = EXCLUSIVE")  # no shared memory, which not every disk has
            self._connection.backup(copy, pages=PAGES, progress=tell)
            copy.execute("PRAGMA journal_mode = DELETE")  # one file, without a write-ahead log beside it
            copy.execute(f"UPDATE versions SET path = {_PLACE}")


def check_copy(database: Path) -> int:
    """Check that a copy may be restored, and return how many tasks it holds.

    Raises ``StoreError`` where it is damaged, made by a newer marlaas, or names files outside of a home.
    """
    with guarded(), closing(sqlite3.connect(f"{read_only(database)}&immutable=1", uri=True)) as connection:
        (verdict,) = connection.execute("PRAGMA quick_check(1)").fetchone()
        if verdict != "ok":
            raise StoreError(f"The database in the backup is damaged: {verdict}.")
        _check(connection)
        return int(connection.execute("SELECT count(*) FROM tasks").fetchone()[0])


def _check(connection: sqlite3.Connection) -> None:
    if is_newer(connection):
        raise newer()
    for (place,) in connection.execute(f"SELECT DISTINCT {_PLACE} FROM versions"):
        parts = PurePosixPath(place).parts
        if not parts or parts[0] != "adapters" or ".." in parts:
            raise StoreError(f"The database names a state file outside of its home: {place!r}.")
