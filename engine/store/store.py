"""The engine's store: one connection, one table object per part of the schema.

Only the engine's event loop uses it; every call is a short transaction of well under a millisecond that waits for no
disk. ``barrier`` does wait, and belongs in a thread.
"""

from __future__ import annotations

from pathlib import Path

from ..faults import Point, reach
from .conformance import ConformanceTable
from .database import barrier, open_database
from .devices import DeviceTable
from .experience import ExperienceTable
from .outcomes import OutcomeTable
from .stages import StageTable
from .standings import StandingTable
from .tasks import TaskTable
from .telemetry import TelemetryTable
from .tenants import TenantTable
from .usage import UsageTable
from .versions import VersionTable
from .yields import YieldTable


class Store:
    """Opens the home's database under a new incarnation. Raises ``StoreError``."""

    def __init__(self, path: Path, base: str, fingerprint: str = "", sampler: str = "") -> None:
        """``base`` is the name of the base that the engine serves, with which ``sampler``; ``fingerprint`` says which
        base that is."""
        self._path = path
        self.fingerprint = fingerprint
        self._database = open_database(path)
        self.telemetry = TelemetryTable(self._database)
        self.conformance = ConformanceTable(self._database)
        self.tasks = TaskTable(self._database)
        self.tenants = TenantTable(self._database)
        self.usage = UsageTable(self._database)
        self.outcomes = OutcomeTable(self._database)
        self.stages = StageTable(self._database)
        self.standings = StandingTable(self._database)
        self.devices = DeviceTable(self._database)
        self.experience = ExperienceTable(self._database)
        self.yields = YieldTable(self._database)
        self.incarnation = self.telemetry.begin_incarnation(base, fingerprint, sampler)
        self.versions = VersionTable(self._database, self.incarnation, self.barrier)

    def changed(self) -> int:
        """A number that differs after another process has committed."""
        return int(self._database.conn.execute("PRAGMA data_version").fetchone()[0])

    def barrier(self) -> None:
        """Bring all commits to the disk; safe in any thread."""
        barrier(self._path)
        reach(Point.BARRIER_DONE)

    def close(self) -> None:
        """Close the connection."""
        self._database.close()
