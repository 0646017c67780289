"""What is alive and what happened: engines, workers, environments, events. Engine side."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict

from sqlite_utils import Database

from ..environments.protocol import EnvironmentInfo
from ..rest.resting import Rest
from .database import insert, insert_all, transaction
from .rows import WorkerRow

KEEP_EVENTS = 100_000
"""Of the newest lines of the log."""


class TelemetryTable:
    """Writes for the screen and the log."""

    def __init__(self, database: Database) -> None:
        self._db = database

    def begin_incarnation(self, base: str, fingerprint: str = "", sampler: str = "") -> int:
        """Register a new engine and return its incarnation, higher than every one before."""
        now = time.time()
        row = {"pid": os.getpid(), "state": "starting", "started": now, "heartbeat": now, "base": base, "note": ""}
        row |= {"fingerprint": fingerprint, "sampler": sampler}
        return insert(self._db, "engines", row)

    def heartbeat(self, incarnation: int, state: str, note: str = "") -> None:
        """Say that the engine lives."""
        self._db.execute(
            "UPDATE engines SET heartbeat = ?, state = ?, note = ? WHERE incarnation = ?",
            [time.time(), state, note, incarnation],
        )

    def rest(self, incarnation: int, rest: Rest | None) -> None:
        """Say why the engine has no workers; None: it has."""
        why = (rest.kind, rest.until) if rest else ("", None)
        self._db.execute("UPDATE engines SET rest = ?, rest_until = ? WHERE incarnation = ?", [*why, incarnation])

    def placed(self, incarnation: int, reasons: Sequence[str]) -> None:
        """Say which worker is where, and why."""
        self._db.execute("UPDATE engines SET placement = ? WHERE incarnation = ?", ["\n".join(reasons), incarnation])

    def event(self, kind: str, message: str, task: int | None = None, level: str = "info") -> None:
        """Add a line to the log; the oldest lines beyond ``KEEP_EVENTS`` go."""
        row = {"task": task, "level": level, "kind": kind, "message": message[:4000], "created": time.time()}
        key = insert(self._db, "events", row)
        if key % 1000 == 0:
            self._db.execute("DELETE FROM events WHERE id <= ?", [key - KEEP_EVENTS])

    def workers(self, rows: Sequence[WorkerRow]) -> None:
        """Replace the list of workers."""
        with transaction(self._db):
            self._db.execute("DELETE FROM workers")
            insert_all(self._db, "workers", (asdict(row) for row in rows))

    def environments(self, infos: Sequence[EnvironmentInfo]) -> None:
        """Replace the list of environments."""
        now = time.time()
        rows = [
            {
                "name": info.name,
                "version": info.version,
                "state": info.state,
                "agents": json.dumps(info.agents),
                "parameters": json.dumps([asdict(parameter) for parameter in info.parameters]),
                "description": info.description,
                "message": info.failure.message if info.failure else "",
                "file": info.failure.file if info.failure else "",
                "line": info.failure.line if info.failure else 0,
                "path": info.path,
                "updated": now,
            }
            for info in infos
        ]
        with transaction(self._db):
            self._db.execute("DELETE FROM environments")
            insert_all(self._db, "environments", rows)
