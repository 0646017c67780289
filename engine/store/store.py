"""The engine's store, for its event loop only.

Calls are transactions of well under a millisecond without a disk wait, except ``barrier`` and ``checkpoint``: call
these in a thread.

On another program's lock a call raises ``DatabaseLocked`` after ``PATIENCE`` seconds and has written nothing. Required
writes go through ``patiently``.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from ..errors import DatabaseLocked
from ..faults import Point, reach
from ..home.paths import Home
from .database import GuardedConnection, barrier, checkpoint, open_database
from .experience import ExperienceTable, OpenPlayTable
from .tasks import ApiTable, ServedTable, TaskTable, TenantTable
from .telemetry import EnvironmentTable, TelemetryTable
from .versions import EvaluationTable, FindingTable, VersionTable

PATIENCE = 0.05
"""Seconds of a wait for a lock. Others hold it for a millisecond or one disk flush."""
LOOK = 0.05

Answer = TypeVar("Answer")


class Store:
    """A home's database under a new incarnation. Raises ``StoreError``."""

    def __init__(self, path: Path, base: str, fingerprint: str = "", sampler: str = "", durable: bool = True) -> None:
        """``durable``: commits survive a power cut; a simulation's need not."""
        self._path = path
        self._durable = durable
        self.fingerprint = fingerprint
        self._database = open_database(path)
        connection = self._database.conn
        assert isinstance(connection, GuardedConnection)
        if not durable:
            connection.execute("PRAGMA synchronous = OFF")
        self._connection = connection
        self.telemetry = TelemetryTable(self._database, path.parent)
        self.api = ApiTable(self._database)
        self.environments = EnvironmentTable(self._database)
        self.tasks = TaskTable(self._database)
        self.tenants = TenantTable(self._database)
        self.evaluations = EvaluationTable(self._database)
        self.experience = ExperienceTable(self._database)
        self.findings = FindingTable(self._database)
        self.open_plays = OpenPlayTable(self._database)
        self.incarnation = self.telemetry.begin_incarnation(base, fingerprint, sampler)
        self.versions = VersionTable(self._database, Home(path.parent), self.incarnation, self.barrier)
        self.served = ServedTable(self._database, Home(path.parent), fingerprint)

    def changed(self) -> int:
        """Changes when another process commits."""
        return int(self._database.conn.execute("PRAGMA data_version").fetchone()[0])

    def barrier(self) -> None:
        """Flush all commits; blocks; thread-safe."""
        if self._durable:
            barrier(self._path)
        reach(Point.BARRIER_DONE)

    def checkpoint(self) -> None:
        """Shorten the log; blocks; thread-safe."""
        checkpoint(self._path)

    def serve(self, patience: float = PATIENCE) -> None:
        """From now on wait only ``PATIENCE`` seconds for locks."""
        self._connection.wait_for(patience)

    @property
    def locked(self) -> bool:
        return self._connection.met_lock and not self._connection.is_free()

    async def unlocked(self) -> None:
        while not self._connection.is_free():
            await asyncio.sleep(LOOK)

    async def patiently(self, write: Callable[[], Answer]) -> Answer:
        """Repeat the transaction ``write`` until it gets the lock.

        No other coroutine runs between the successful try and the return.
        """
        while True:
            try:
                return write()
            except DatabaseLocked:
                await self.unlocked()

    def close(self) -> None:
        self._database.close()
