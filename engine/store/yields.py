"""A person's request that the engine yield the machine. It outlives the engine that received it. Engine side."""

from __future__ import annotations

import time

from sqlite_utils import Database

from .database import insert_all, transaction
from .rows import YieldRequest


class YieldTable:
    """Holds the newest request to yield, until it is taken back."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def get(self) -> YieldRequest | None:
        """The newest request; its time may be over."""
        row = self._db.conn.execute("SELECT until FROM yields").fetchone()
        return YieldRequest(row[0]) if row else None

    def begin(self, until: float | None) -> None:
        """Yield until a time in seconds since 1970 (None: until taken back), in place of an earlier request."""
        with transaction(self._db):
            insert_all(self._db, "yields", [{"id": 1, "since": time.time(), "until": until}], replace=True)

    def end(self) -> None:
        """Take the request back."""
        self._db.execute("DELETE FROM yields")
