"""The table of the machine's cards, for the screen. Engine side."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from sqlite_utils import Database

from .database import insert_all, transaction
from .queries.devices import DeviceRow


class DeviceTable:
    """Holds what was last seen of the cards."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def replace(self, rows: Sequence[DeviceRow]) -> None:
        """Write the cards, in the driver's order, in place of those before."""
        with transaction(self._db):
            self._db.execute("DELETE FROM devices")
            insert_all(self._db, "devices", (_columns(place, row) for place, row in enumerate(rows)))


def _columns(place: int, row: DeviceRow) -> dict[str, object]:
    holders = json.dumps([asdict(holder) for holder in row.holders])
    return {**asdict(row), "place": place, "holders": holders}
