"""The tables of engines, workers, devices, nodes, environments and events. Engine side."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from ..clock import wall_time
from ..environments.conformance.finding import Finding, bounded
from ..environments.health import Standstill
from ..environments.outcomes import Counted
from ..environments.protocol import Crew, EnvironmentInfo
from ..errors import DatabaseLocked, StoreError
from ..fairness.line import Standing
from ..home.paths import version
from ..trajectories import Failure
from .database import Table, insert, insert_all, transaction
from .queries.machine import DeviceRow, NodeRow, StageSample
from .rows import WorkerRow, Yielding, YieldRequest

KEEP_EVENTS = 100_000
MOST_HELD = 10_000


class TelemetryTable(Table):
    """Writes for the screen and the log.

    While the database is locked, lines of the log and the list of environments wait for the next write or heartbeat.
    """

    def __init__(self, database: Database, root: Path) -> None:
        """``root``: the home; its files are named relative to it."""
        super().__init__(database)
        self._root = root
        self._held_events: list[dict[str, Any]] = []
        self._held_environments: Sequence[EnvironmentInfo] | None = None
        self._crews: dict[str, Crew] = {}

    def begin_incarnation(self, base: str, fingerprint: str = "", sampler: str = "") -> int:
        now = wall_time()
        row = {"pid": os.getpid(), "state": "starting", "started": now, "heartbeat": now, "base": base, "note": ""}
        row |= {"fingerprint": fingerprint, "sampler": sampler, "version": version()}
        return insert(self._db, "engines", row)

    def heartbeat(self, incarnation: int, state: str, note: str = "") -> None:
        self._db.execute(
            "UPDATE engines SET heartbeat = ?, state = ?, note = ? WHERE incarnation = ?",
            [wall_time(), state, note, incarnation],
        )
        self._write_events()
        if self._held_environments is not None:
            self.environments(self._held_environments)

    def yielding(self, incarnation: int, yielding: Yielding | None) -> None:
        why = (yielding.kind, yielding.until) if yielding else ("", None)
        self._db.execute("UPDATE engines SET rest = ?, rest_until = ? WHERE incarnation = ?", [*why, incarnation])

    def placed(self, incarnation: int, reasons: Sequence[str], sampler: str, precision: str) -> None:
        self._db.execute(
            "UPDATE engines SET placement = ?, sampler = ?, precision = ? WHERE incarnation = ?",
            ["\n".join(reasons), sampler, precision, incarnation],
        )

    def event(self, kind: str, message: str, task: int | None = None, level: str = "info") -> None:
        row = {"task": task, "level": level, "kind": kind, "message": message[:4000], "created": wall_time()}
        self._held_events = [*self._held_events, row][-MOST_HELD:]
        self._write_events()

    def _write_events(self) -> None:
        """Write the lines in order; drop one that fails for another reason than a lock."""
        held, self._held_events = self._held_events, []
        for place, row in enumerate(held):
            try:
                key = insert(self._db, "events", row)
            except DatabaseLocked:
                self._held_events = held[place:]
                return
            except StoreError:
                self._held_events = held[place + 1 :]
                raise
            if key % 1000 == 0:
                with contextlib.suppress(DatabaseLocked):
                    self._db.execute("DELETE FROM events WHERE id <= ?", [key - KEEP_EVENTS])

    def workers(self, rows: Sequence[WorkerRow]) -> None:
        self._replace("workers", (asdict(row) for row in rows))

    def environments(self, infos: Sequence[EnvironmentInfo]) -> None:
        self._held_environments = None
        now = wall_time()
        rows = [
            {
                "name": info.name,
                "version": info.version,
                "state": info.state,
                "agents": json.dumps(info.agents),
                "rows": info.rows,
                "parameters": json.dumps([asdict(parameter) for parameter in info.parameters]),
                "description": info.description,
                "message": info.failure.message if info.failure else "",
                "file": info.failure.file if info.failure else "",
                "line": info.failure.line if info.failure else 0,
                "path": info.path.removeprefix(f"{self._root}{os.sep}"),
                "updated": now,
                **asdict(info.crew),
            }
            for info in infos
        ]
        try:
            self._replace("environments", rows)
        except DatabaseLocked:
            self._held_environments = infos
        else:
            self._crews = {info.name: info.crew for info in infos}

    def crews(self, infos: Sequence[EnvironmentInfo]) -> None:
        changed = [info for info in infos if self._crews.get(info.name, info.crew) != info.crew]
        if changed:
            with transaction(self._db):
                for info in changed:
                    crew = asdict(info.crew)
                    places = ", ".join(f"{column} = ?" for column in crew)
                    values = [*crew.values(), info.name]
                    self._db.execute(f"UPDATE environments SET {places} WHERE name = ?", values)
            self._crews |= {info.name: info.crew for info in changed}


# Tables of the machine: its GPUs, use of stages, tenants' places in the queues, requests to yield. Engine side.
#
# Every heartbeat adds a sample of each stage. After an hour they become one row a minute, after a day one an hour, and
# after a month they are removed: about 25,000 rows stay.

MINUTE, HOUR, DAY = 60, 3600, 86400
THINNED = ((HOUR, MINUTE), (DAY, HOUR))
"""Pairs of an age and a span, both in seconds: from that age on, one row sums up that span."""
KEPT = 31 * DAY


class StageTable(Table):
    """The samples of stages; thins out old ones."""

    def add(self, incarnation: int, samples: Iterable[StageSample]) -> None:
        with transaction(self._db):
            insert_all(self._db, "stages", ({"incarnation": incarnation, **vars(sample)} for sample in samples))

    def thin(self, now: float) -> None:
        """Merge old samples, weighted by their seconds, and remove those that are too old."""
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


class StandingTable(Table):
    """Tenants' places in the queues, as last written."""

    _written: Mapping[str, Sequence[Standing]] | None = None

    def replace(self, standings: Mapping[str, Sequence[Standing]]) -> None:
        if standings == self._written:
            return
        rows = ({"stage": stage, **asdict(row)} for stage, many in standings.items() for row in many if row.tenant)
        self._replace("standings", rows)
        self._written = standings


class DeviceTable(Table):
    """The GPUs as last seen."""

    def replace(self, rows: Sequence[DeviceRow]) -> None:
        self._replace("devices", ({**_columns(row), "place": place} for place, row in enumerate(rows)))


class YieldTable(Table):
    """The newest request to yield, until it is taken back."""

    def get(self) -> YieldRequest | None:
        """The newest request; its time may be over."""
        row = self._db.conn.execute("SELECT until FROM yields").fetchone()
        return YieldRequest(row[0]) if row else None

    def begin(self, until: float | None) -> None:
        """Yield until a time in seconds since 1970 (None: until taken back); replaces an earlier request."""
        with transaction(self._db):
            insert_all(self._db, "yields", [{"id": 1, "since": wall_time(), "until": until}], replace=True)

    def end(self) -> None:
        self._db.execute("DELETE FROM yields")


# Tables of the cluster: its nodes as last seen, and those that a person drains. Engine side.
#
# A drain is stored by the node's name, so that it outlives the engine and Ray.


class NodeTable(Table):
    """The nodes as last seen, and the drained ones."""

    _written: Sequence[NodeRow] | None = None

    def replace(self, rows: Sequence[NodeRow]) -> None:
        if rows == self._written:
            return
        self._replace("nodes", map(_columns, rows))
        self._written = tuple(rows)

    def drained(self) -> frozenset[str]:
        return frozenset(row[0] for row in self._db.conn.execute("SELECT node FROM drains"))

    def drain(self, node: str) -> None:
        with transaction(self._db):
            insert_all(self._db, "drains", [{"node": node, "since": time.time()}], replace=True)

    def undrain(self, node: str) -> None:
        self._db.execute("DELETE FROM drains WHERE node = ?", [node])


def _columns(row: DeviceRow | NodeRow) -> dict[str, object]:
    return {name: json.dumps(value) if isinstance(value, tuple) else value for name, value in asdict(row).items()}


# Outcomes of environments' episodes, findings of the checks, and environments that only fail. Engine side.
#
# Every heartbeat adds counts by minute, environment and version. After an hour minutes are summed to hours, and after a
# day they are removed.

FAILING_KEPT = 30 * DAY
"""Seconds without an engine that serves a version, after which its failing is forgotten."""
LONGEST_MESSAGE = 1000
CHECKS_KEPT = 20
"""Versions of an environment with kept findings, the last checked ones."""


class ConformanceTable(Table):
    """Findings by environment and version."""

    def known(self, environment: str, version: str, base: str) -> bool:
        return (
            self._db.execute(
                "SELECT 1 FROM conformance WHERE environment = ? AND version = ? AND base = ?",
                [environment, version, base],
            ).fetchone()
            is not None
        )

    def add(self, environment: str, version: str, base: str, findings: Sequence[Finding]) -> None:
        row = {
            "environment": environment,
            "version": version,
            "base": base,
            "findings": json.dumps([asdict(finding) for finding in bounded(findings)]),
            "created": wall_time(),
        }
        with transaction(self._db):
            insert_all(self._db, "conformance", [row], replace=True)
            self._db.execute(
                "DELETE FROM conformance WHERE environment = ? AND rowid NOT IN"
                " (SELECT rowid FROM conformance WHERE environment = ? ORDER BY created DESC, rowid DESC LIMIT ?)",
                [environment, environment, CHECKS_KEPT],
            )


class FailingTable(Table):
    """Parameters that only failed in an environment version, by plugin and version."""

    def all(self) -> dict[tuple[str, str], list[Standstill]]:
        rows = self._db.conn.execute(
            "SELECT plugin, version, environment, parameters, message, file, line, rest FROM failing"
        )
        found: defaultdict[tuple[str, str], list[Standstill]] = defaultdict(list)
        for plugin, number, environment, parameters, message, file, line, rest in rows:
            found[plugin, number].append(Standstill((environment, parameters), Failure(message, file, line), rest))
        return found

    def replace(self, plugin: str, version: str, standstills: Sequence[Standstill], now: float | None = None) -> None:
        """Replace the entries of a version; other versions' rows are removed after ``FAILING_KEPT``."""
        now = wall_time() if now is None else now
        rows = [
            {
                "plugin": plugin,
                "version": version,
                "environment": one.settings[0],
                "parameters": one.settings[1],
                "message": one.failure.message[:LONGEST_MESSAGE],
                "file": one.failure.file,
                "line": one.failure.line,
                "rest": one.rest,
                "created": now,
            }
            for one in standstills
        ]
        with transaction(self._db):
            gone = [plugin, version, now - FAILING_KEPT]
            self._db.execute("DELETE FROM failing WHERE (plugin = ? AND version = ?) OR created < ?", gone)
            insert_all(self._db, "failing", rows)


_ADD = (
    "INSERT INTO outcomes (begun, environment, version, status, bucket, episodes) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (begun, environment, version, status, bucket) DO UPDATE SET episodes = episodes + excluded.episodes"
)


class OutcomeTable(Table):
    """Counts of episodes by outcome, and the last failure of each environment version."""

    def add(self, counted: Counted, now: float | None = None) -> None:
        """Add to the counts of this minute; all of it or, with ``StoreError``, nothing."""
        if not counted.outcomes and not counted.failures:
            return
        now = wall_time() if now is None else now
        begun = now // MINUTE * MINUTE
        rows = [(begun, one.environment, one.version, one.status, one.bucket, one.episodes) for one in counted.outcomes]
        failures = [
            {
                "environment": last.environment,
                "version": last.version,
                "message": last.failure.message[:LONGEST_MESSAGE],
                "file": last.failure.file,
                "line": last.failure.line,
                "created": now,
            }
            for last in counted.failures
        ]
        with transaction(self._db):
            self._db.conn.executemany(_ADD, rows)
            insert_all(self._db, "failures", failures, replace=True)

    def thin(self, now: float) -> None:
        """Sum minutes that are older than an hour to hours, and remove all that is older than a day."""
        before = (now - HOUR) // HOUR * HOUR
        with transaction(self._db):
            for table, column in (("outcomes", "begun"), ("failures", "created")):
                self._db.execute(f"DELETE FROM {table} WHERE {column} < ?", [now - DAY])
            whole = f"CAST(begun / {HOUR} AS INT) * {HOUR}"
            rows = self._db.conn.execute(
                f"SELECT {whole}, environment, version, status, bucket, sum(episodes) FROM outcomes"
                f" WHERE begun < ? AND begun != {whole} GROUP BY 1, 2, 3, 4, 5",
                [before],
            ).fetchall()
            self._db.execute(f"DELETE FROM outcomes WHERE begun < ? AND begun != {whole}", [before])
            self._db.conn.executemany(_ADD, rows)
