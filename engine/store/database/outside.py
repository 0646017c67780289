"""How other processes than the engine write: one short transaction on a connection of its own.

Standard library only.
"""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from ...errors import StoreError
from .schema import is_newer, newer


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
            raise StoreError(f"the database cannot be written: {error}.", where=str(self._database)) from error
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        with closing(self._connection) as connection:
            try:
                connection.execute("ROLLBACK" if kind else "COMMIT")
            except sqlite3.Error as failure:
                raise StoreError(f"the database cannot be written: {failure}.", where=str(self._database)) from failure
        if isinstance(error, sqlite3.Error):
            raise StoreError(f"the database cannot be written: {error}.", where=str(self._database)) from error
