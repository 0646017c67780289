"""Where tenants stand in the lines of the shared stages: what the fair clocks say at this moment. Engine side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict

from sqlite_utils import Database

from ..fairness.line import Standing
from .database import insert_all, transaction


class StandingTable:
    """Holds the newest standings alone."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._written: Mapping[str, Sequence[Standing]] | None = None

    def replace(self, standings: Mapping[str, Sequence[Standing]]) -> None:
        """Write down who stands where, by stage; nothing is written while nothing moves."""
        if standings == self._written:
            return
        with transaction(self._db):
            self._db.execute("DELETE FROM standings")
            rows = ({"stage": stage, **asdict(one)} for stage, many in standings.items() for one in many if one.tenant)
            insert_all(self._db, "standings", rows)
        self._written = standings
