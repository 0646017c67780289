"""Tables of engines, machines, environments and events."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, astuple
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from ..clock import wall_time
from ..environments.conformance.finding import Finding, bounded
from ..environments.health import Standstill
from ..environments.outcomes import Counted
from ..environments.protocol import EnvironmentInfo
from ..errors import DatabaseLocked, StoreError
from ..fairness.line import Standing
from ..home.paths import version
from ..trajectories import Failure
from .database import Table, insert, insert_all, transaction
from .queries.machine import DeviceRow, NodeRow, StageSample
from .rows import WorkerRow, Yielding, YieldRequest

KEEP_EVENTS = 100_000
MOST_HELD = 10_000
MINUTE, HOUR, DAY = 60, 3600, 86400
THINNED = ((HOUR, MINUTE), (DAY, HOUR))
"""(age, span) in seconds: from that age on, one row sums up that span."""
KEPT = 31 * DAY


class TelemetryTable(Table):
    """While the database is locked, log lines wait for the next write or heartbeat."""

    def __init__(self, database: Database, root: Path) -> None:
        super().__init__(database)
        self._root = root
        self._held_events: list[dict[str, Any]] = []
        self._written: dict[str, list[dict[str, object]]] = {}
        self._environments: dict[str, EnvironmentInfo] | None = None

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
        """Drops a line that fails for another reason than a lock."""
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
        """Write the changed ones: crews change with every beat. Skipped while the database is locked."""
        before, after = self._environments, {info.name: info for info in infos}
        if after == before:
            return
        with contextlib.suppress(DatabaseLocked):
            with transaction(self._db):
                if before is None:
                    self._db.execute("DELETE FROM environments")
                    before = {}
                gone = [(name,) for name in before.keys() - after.keys()]
                self._db.conn.executemany("DELETE FROM environments WHERE name = ?", gone)
                changed = (self._environment(info) for name, info in after.items() if before.get(name) != info)
                insert_all(self._db, "environments", changed, replace=True)
            self._environments = after

    def _environment(self, info: EnvironmentInfo) -> dict[str, object]:
        return {
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
            "updated": wall_time(),
            **asdict(info.crew),
        }

    # Every heartbeat adds samples: one row a minute after an hour, one an hour after a day, none after a month; 25,000
    # in all.

    def add_stages(self, incarnation: int, samples: Iterable[StageSample]) -> None:
        with transaction(self._db):
            insert_all(self._db, "stages", ({"incarnation": incarnation, **vars(sample)} for sample in samples))

    def thin_stages(self, now: float) -> None:
        """Merged samples are weighted by their seconds."""
        columns = "incarnation, stage, device, begun, wall, busy, waiting, active, ended, tokens, read, passes"
        mean = "total({0} * wall) / max(total(wall), 1e-9)"
        with transaction(self._db):
            self._db.execute("DELETE FROM stages WHERE begun < ?", [now - KEPT])
            for age, span in THINNED:
                before = (now - age) // span * span
                rows = self._db.conn.execute(
                    f"SELECT max(id), incarnation, stage, device, min(begun), total(wall), total(busy),"
                    f" {mean.format('waiting')}, {mean.format('active')}, sum(ended), sum(tokens),"
                    " sum(read), sum(passes), CAST(begun / ? AS INT) AS bucket"
                    " FROM stages WHERE begun < ? GROUP BY incarnation, stage, device, bucket HAVING count(*) > 1",
                    [span, before],
                ).fetchall()
                self._db.conn.executemany(
                    "DELETE FROM stages WHERE incarnation = ? AND stage = ? AND device = ? AND begun >= ?"
                    " AND begun < ?",
                    [(row[1], row[2], row[3], row[-1] * span, (row[-1] + 1) * span) for row in rows],
                )
                self._db.conn.executemany(
                    f"INSERT INTO stages (id, {columns}) VALUES ({', '.join('?' * 13)})",
                    [tuple(row[:-1]) for row in rows],
                )

    def standings(self, standings: Mapping[str, Sequence[Standing]]) -> None:
        rows = [{"stage": stage, **asdict(row)} for stage, many in standings.items() for row in many if row.tenant]
        self._replace_changed("standings", rows)

    def devices(self, rows: Sequence[DeviceRow]) -> None:
        self._replace("devices", ({**_columns(row), "place": place} for place, row in enumerate(rows)))

    def nodes(self, rows: Sequence[NodeRow]) -> None:
        self._replace_changed("nodes", list(map(_columns, rows)))

    def drained(self) -> frozenset[str]:
        """By name: a drain outlives the engine and Ray."""
        return frozenset(row[0] for row in self._db.conn.execute("SELECT node FROM drains"))

    def drain(self, node: str) -> None:
        with transaction(self._db):
            insert_all(self._db, "drains", [{"node": node, "since": time.time()}], replace=True)

    def undrain(self, node: str) -> None:
        self._db.execute("DELETE FROM drains WHERE node = ?", [node])

    def yield_request(self) -> YieldRequest | None:
        """Its time may be over."""
        row = self._db.conn.execute("SELECT until FROM yields").fetchone()
        return YieldRequest(row[0]) if row else None

    def begin_yield(self, until: float | None) -> None:
        with transaction(self._db):
            insert_all(self._db, "yields", [{"id": 1, "since": wall_time(), "until": until}], replace=True)

    def end_yield(self) -> None:
        self._db.execute("DELETE FROM yields")

    def _replace_changed(self, table: str, rows: list[dict[str, object]]) -> None:
        if rows != self._written.get(table):
            self._replace(table, rows)
            self._written[table] = rows


def _columns(row: DeviceRow | NodeRow) -> dict[str, object]:
    return {name: json.dumps(value) if isinstance(value, tuple) else value for name, value in asdict(row).items()}


FAILING_KEPT = 30 * DAY
"""Seconds until the failing of a version that no engine serves is forgotten."""
LONGEST_MESSAGE = 1000
CHECKS_KEPT = 20
"""Versions of an environment."""
_ADD = (
    "INSERT INTO outcomes (begun, environment, version, status, bucket, episodes) VALUES (?, ?, ?, ?, ?, ?)"
    " ON CONFLICT (begun, environment, version, status, bucket) DO UPDATE SET episodes = episodes + excluded.episodes"
)


class EnvironmentTable(Table):
    """Check findings, parameters that only failed, episode counts by outcome."""

    def is_checked(self, environment: str, version: str, base: str) -> bool:
        sql = "SELECT 1 FROM conformance WHERE environment = ? AND version = ? AND base = ?"
        return self._db.execute(sql, [environment, version, base]).fetchone() is not None

    def add_findings(self, environment: str, version: str, base: str, findings: Sequence[Finding]) -> None:
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

    def failing(self) -> dict[tuple[str, str], list[Standstill]]:
        rows = self._db.conn.execute(
            "SELECT plugin, version, environment, parameters, message, file, line, rest FROM failing"
        )
        standstills: defaultdict[tuple[str, str], list[Standstill]] = defaultdict(list)
        for plugin, number, environment, parameters, *failure, rest in rows:
            standstills[plugin, number].append(Standstill((environment, parameters), Failure(*failure), rest))
        return standstills

    def replace_failing(
        self, plugin: str, version: str, standstills: Sequence[Standstill], now: float | None = None
    ) -> None:
        now = wall_time() if now is None else now
        rows = [
            {
                "plugin": plugin,
                "version": version,
                "environment": each.settings[0],
                "parameters": each.settings[1],
                **_failure(each.failure),
                "rest": each.rest,
                "created": now,
            }
            for each in standstills
        ]
        with transaction(self._db):
            gone = [plugin, version, now - FAILING_KEPT]
            self._db.execute("DELETE FROM failing WHERE (plugin = ? AND version = ?) OR created < ?", gone)
            insert_all(self._db, "failing", rows)

    def add_outcomes(self, counted: Counted, now: float | None = None) -> None:
        """Keeps the last failure of each environment version. All or, with ``StoreError``, nothing."""
        if not counted.outcomes and not counted.failures:
            return
        now = wall_time() if now is None else now
        begun = now // MINUTE * MINUTE
        rows = [(begun, *astuple(each)) for each in counted.outcomes]
        failures = [
            {"environment": last.environment, "version": last.version, **_failure(last.failure), "created": now}
            for last in counted.failures
        ]
        with transaction(self._db):
            self._db.conn.executemany(_ADD, rows)
            insert_all(self._db, "failures", failures, replace=True)

    def thin_outcomes(self, now: float) -> None:
        before = (now - HOUR) // HOUR * HOUR
        with transaction(self._db):
            self._db.execute("DELETE FROM outcomes WHERE begun < ?", [now - DAY])
            self._db.execute("DELETE FROM failures WHERE created < ?", [now - DAY])
            whole = f"CAST(begun / {HOUR} AS INT) * {HOUR}"
            rows = self._db.conn.execute(
                f"SELECT {whole}, environment, version, status, bucket, sum(episodes) FROM outcomes"
                f" WHERE begun < ? AND begun != {whole} GROUP BY 1, 2, 3, 4, 5",
                [before],
            ).fetchall()
            self._db.execute(f"DELETE FROM outcomes WHERE begun < ? AND begun != {whole}", [before])
            self._db.conn.executemany(_ADD, rows)


def _failure(failure: Failure) -> dict[str, object]:
    return {"message": failure.message[:LONGEST_MESSAGE], "file": failure.file, "line": failure.line}
