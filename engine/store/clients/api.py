"""Tables of the API: keys by their hashes, what each has used, and whether it is open. Engine side."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace

from sqlite_utils import Database

from ...clock import wall_time
from ..database import insert_all, transaction
from ..queries.api import KEYS, api_row, key_row
from ..rows import ApiKeyRow, ApiRow


@dataclass(frozen=True)
class KeyUse:
    """What a key has used since the last time that it was written."""

    key: int
    """The key's number."""
    requests: int
    tokens_in: int
    tokens_out: int
    last: float
    """Time of the newest request, in seconds since 1970."""


class ApiTable:
    """Reads keys, which other processes make and revoke; writes what they use, and the state of the API."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def key(self, digest: bytes) -> ApiKeyRow | None:
        """The key with this SHA-256 digest, revoked or not."""
        for row in self._db.query(f"{KEYS} WHERE hash = ?", [digest]):
            return key_row(row)
        return None

    def any_key(self) -> bool:
        """Whether there is a key that was not revoked."""
        return self._db.conn.execute("SELECT 1 FROM api_keys WHERE revoked IS NULL LIMIT 1").fetchone() is not None

    def add_use(self, uses: Iterable[KeyUse]) -> None:
        """Add to what keys have used, in one transaction."""
        with transaction(self._db):
            self._db.conn.executemany(
                "UPDATE api_keys SET requests = requests + ?, tokens_in = tokens_in + ?, tokens_out = tokens_out + ?,"
                " last_use = max(coalesce(last_use, 0), ?) WHERE id = ?",
                [(use.requests, use.tokens_in, use.tokens_out, use.last, use.key) for use in uses],
            )

    def state(self) -> ApiRow:
        """What was asked for last, and what is."""
        for row in self._db.query("SELECT * FROM api"):
            return api_row(row)
        return ApiRow()

    def switch(self, on: bool, port: int | None = None) -> None:
        """Remember that a person started or stopped it, for this engine and the next ones."""
        self._write(replace(self.state(), switched=on, port=port))

    def tell(self, is_open: bool, url: str = "", note: str = "") -> None:
        """Tell everybody whether it is open, and why it is not although it should be."""
        self._write(replace(self.state(), open=is_open, url=url, note=note, since=wall_time()))

    def _write(self, row: ApiRow) -> None:
        insert_all(self._db, "api", [{"id": 1, **asdict(row)}], replace=True)
