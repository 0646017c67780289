"""How other processes than the engine write: one short transaction on a connection of its own.

Standard library only.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ...errors import DatabaseUnwritable, StoreError
from .schema import is_newer, newer

UNWRITABLE = {
    sqlite3.SQLITE_FULL: "Free some space",
    sqlite3.SQLITE_IOERR: "Look at the disk, and free some space",
    sqlite3.SQLITE_READONLY: "Mount the home's disk for writing, or choose another --home",
}
"""Why the disk takes nothing, with what helps."""


def unwritten(error: sqlite3.Error, database: Path | str = "") -> StoreError:
    """What to raise where nothing could be written, with what helps where that lies in the disk."""
    says = f"{'the' if database else 'The'} database cannot be written: {error}."
    if hint := UNWRITABLE.get(getattr(error, "sqlite_errorcode", 0) & 0xFF):
        return DatabaseUnwritable(says, f"{hint}; nothing that was committed is lost.", where=str(database))
    return StoreError(says, where=str(database))


class outside_transaction:
    """A short write transaction that turns sqlite's errors into ``StoreError``."""

    def __init__(self, database: Path) -> None:
        self._database = database

    def __enter__(self) -> sqlite3.Connection:
        if not self._database.exists():
            raise StoreError(f"There is no database at {self._database}.", "`marlaas engine start` makes one.")
        self._connection = sqlite3.connect(self._database, timeout=30, isolation_level=None)
        try:
            if is_newer(self._connection):
                self._connection.close()
                raise newer()
            self._connection.execute("BEGIN IMMEDIATE")
        except sqlite3.Error as error:
            self._connection.close()
            raise unwritten(error, self._database) from error
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with closing(self._connection) as connection:
            try:
                connection.execute("ROLLBACK" if kind else "COMMIT")
            except sqlite3.Error as failure:
                raise unwritten(failure, self._database) from failure
        if isinstance(error, sqlite3.Error):
            raise unwritten(error, self._database) from error
