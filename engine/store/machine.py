"""Tables of the machine: its cards, how busy stages were, where tenants stand in line, requests to yield. Engine side.

Every heartbeat adds a sample of each stage. After an hour they become one row a minute, after a day one an hour, and
after a month they are removed: about 25,000 rows stay. A request to yield outlives the engine that received it.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict

from sqlite_utils import Database

from ..clock import wall_time
from ..fairness import Standing
from .database import insert_all, transaction
from .queries.devices import DeviceRow
from .queries.timeline import StageSample
from .rows import YieldRequest

MINUTE, HOUR, DAY = 60, 3600, 86400
THINNED = ((HOUR, MINUTE), (DAY, HOUR))
"""Pairs of an age and a span, both in seconds: from that age on, one row sums up that span."""
KEPT = 31 * DAY


class StageTable:
    """The samples of stages; thins out old ones."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def add(self, incarnation: int, samples: Iterable[StageSample]) -> None:
        """Store the samples of one heartbeat."""
        with transaction(self._db):
            insert_all(self._db, "stages", ({"incarnation": incarnation, **vars(sample)} for sample in samples))

    def thin(self, now: float) -> None:
        """Merge old samples, weighted by the seconds that they cover, and remove those that are too old."""
        with transaction(self._db):
            self._db.execute("DELETE FROM stages WHERE begun < ?", [now - KEPT])
            for age, span in THINNED:
                self._together((now - age) // span * span, span)

    def _together(self, before: float, span: int) -> None:
        columns = "incarnation, stage, device, begun, wall, busy, waiting, active, ended, tokens, read, passes"
        mean = "total({0} * wall) / max(total(wall), 1e-9)"
        rows = self._db.conn.execute(
            f"SELECT max(id), incarnation, stage, device, min(begun), total(wall), total(busy),"
            f" {mean.format('waiting')}, {mean.format('active')}, sum(ended), sum(tokens),"
            " sum(read), sum(passes), CAST(begun / ? AS INT) AS bucket"
            " FROM stages WHERE begun < ? GROUP BY incarnation, stage, device, bucket HAVING count(*) > 1",
            [span, before],
        ).fetchall()
        self._db.conn.executemany(
            "DELETE FROM stages WHERE incarnation = ? AND stage = ? AND device = ? AND begun >= ? AND begun < ?",
            [(row[1], row[2], row[3], row[-1] * span, (row[-1] + 1) * span) for row in rows],
        )
        self._db.conn.executemany(
            f"INSERT INTO stages (id, {columns}) VALUES ({', '.join('?' * 13)})", [tuple(row[:-1]) for row in rows]
        )


class StandingTable:
    """Where tenants stand in line, as last written."""

    def __init__(self, database: Database) -> None:
        self._db = database
        self._written: Mapping[str, Sequence[Standing]] | None = None

    def replace(self, standings: Mapping[str, Sequence[Standing]]) -> None:
        """Write the standings of each stage, if they differ from those before."""
        if standings == self._written:
            return
        with transaction(self._db):
            self._db.execute("DELETE FROM standings")
            rows = ({"stage": stage, **asdict(one)} for stage, many in standings.items() for one in many if one.tenant)
            insert_all(self._db, "standings", rows)
        self._written = standings


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
            insert_all(self._db, "yields", [{"id": 1, "since": wall_time(), "until": until}], replace=True)

    def end(self) -> None:
        """Take the request back."""
        self._db.execute("DELETE FROM yields")
