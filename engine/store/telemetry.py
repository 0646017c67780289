"""The tables of engines, workers, environments and events. Engine side."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from ..clock import wall_time
from ..environments import Crew, EnvironmentInfo
from ..errors import DatabaseLocked, StoreError
from ..home import version
from .database import insert, insert_all, transaction
from .rows import WorkerRow, Yielding

KEEP_EVENTS = 100_000
"""Lines of the log that are kept, the newest."""
MOST_HELD = 10_000
"""The most lines that wait in memory while another program locks the database."""


class TelemetryTable:
    """Writes for the screen and the log.

    Where the database is locked, lines of the log and the list of environments are held back, and written with the next
    ones or with the next heartbeat.
    """

    def __init__(self, database: Database, root: Path) -> None:
        """``root``: the home; files in it are named relative to it."""
        self._db = database
        self._root = root
        self._held_events: list[dict[str, Any]] = []
        self._held_environments: Sequence[EnvironmentInfo] | None = None
        self._crews: dict[str, Crew] = {}
        """What was written last of the processes of each environment."""

    def begin_incarnation(self, base: str, fingerprint: str = "", sampler: str = "") -> int:
        """Register a new engine and return its incarnation, a number above all earlier ones."""
        now = wall_time()
        row = {"pid": os.getpid(), "state": "starting", "started": now, "heartbeat": now, "base": base, "note": ""}
        row |= {"fingerprint": fingerprint, "sampler": sampler, "version": version()}
        return insert(self._db, "engines", row)

    def heartbeat(self, incarnation: int, state: str, note: str = "") -> None:
        """Record that the engine lives."""
        self._db.execute(
            "UPDATE engines SET heartbeat = ?, state = ?, note = ? WHERE incarnation = ?",
            [wall_time(), state, note, incarnation],
        )
        self._write_events()
        if self._held_environments is not None:
            self.environments(self._held_environments)

    def yielding(self, incarnation: int, yielding: Yielding | None) -> None:
        """Record why the engine has no workers; None: it has."""
        why = (yielding.kind, yielding.until) if yielding else ("", None)
        self._db.execute("UPDATE engines SET rest = ?, rest_until = ? WHERE incarnation = ?", [*why, incarnation])

    def placed(self, incarnation: int, reasons: Sequence[str], sampler: str, precision: str) -> None:
        """Record the placement plan, as sentences that say which worker is where and why, the samplers' kind, and the
        precision of both stages in words."""
        self._db.execute(
            "UPDATE engines SET placement = ?, sampler = ?, precision = ? WHERE incarnation = ?",
            ["\n".join(reasons), sampler, precision, incarnation],
        )

    def event(self, kind: str, message: str, task: int | None = None, level: str = "info") -> None:
        """Add a line to the log; the oldest lines beyond ``KEEP_EVENTS`` go."""
        row = {"task": task, "level": level, "kind": kind, "message": message[:4000], "created": wall_time()}
        self._held_events = [*self._held_events, row][-MOST_HELD:]
        self._write_events()

    def _write_events(self) -> None:
        """Write the lines in order; one that fails for another reason than a lock is dropped."""
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
        """Replace the list of workers."""
        with transaction(self._db):
            self._db.execute("DELETE FROM workers")
            insert_all(self._db, "workers", (asdict(row) for row in rows))

    def environments(self, infos: Sequence[EnvironmentInfo]) -> None:
        """Replace the list of environments."""
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
            with transaction(self._db):
                self._db.execute("DELETE FROM environments")
                insert_all(self._db, "environments", rows)
        except DatabaseLocked:
            self._held_environments = infos
        else:
            self._crews = {info.name: info.crew for info in infos}

    def crews(self, infos: Sequence[EnvironmentInfo]) -> None:
        """Record the processes of environments that are in the list, where these are others than before."""
        changed = [info for info in infos if self._crews.get(info.name, info.crew) != info.crew]
        if changed:
            with transaction(self._db):
                for info in changed:
                    crew = asdict(info.crew)
                    places = ", ".join(f"{column} = ?" for column in crew)
                    values = [*crew.values(), info.name]
                    self._db.execute(f"UPDATE environments SET {places} WHERE name = ?", values)
            self._crews |= {info.name: info.crew for info in changed}
