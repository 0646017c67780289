"""Reads for whoever watches the machine: what stages did over time, who stands where in line, which engines there were.

Rows of the store flow in, frozen rows flow out. Standard library only; every query is short, whatever the home's age.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..rows import EngineRow
from .reader import Reader

STAGES = ("rollout", "environment", "training", "engine")
"""In the order of an episode's way; the engine, which serves them, last."""
_NEWEST_STEPS = 5000
"""Steps that are looked through for those of the last minute."""
_SUMS = """total(wall) AS wall, total(busy) AS busy,
    total(waiting * wall) / max(total(wall), 1e-9) AS waiting, total(active * wall) / max(total(wall), 1e-9) AS active,
    sum(ended) AS ended, sum(tokens) AS tokens"""
WORKER = "env "
"""How the names of environment workers begin, of which each has samples of its own beside those of its stage."""
_LISTED = f"stage IN ({', '.join(repr(stage) for stage in STAGES)})"
_WITH_WORKERS = f"VALUES {', '.join(f'({stage!r})' for stage in STAGES)} UNION SELECT name FROM workers"


@dataclass(frozen=True)
class StageSample:
    """What a stage did in some seconds, or one of its workers."""

    stage: str
    """rollout, environment, training or engine; or a worker of the environment stage: env NAME"""
    device: str
    """What it computes on, in words."""
    begun: float
    wall: float
    """Seconds that the sample covers."""
    busy: float
    """Of them, those with useful work; of several processes, the sum of their processor time."""
    waiting: float
    """Requests that waited."""
    active: float
    """Requests under way."""
    ended: int
    """Turns, episodes or calls that ended."""
    tokens: int = 0
    """Sampled (rollout), or trained on (training)."""

    @property
    def share(self) -> float:
        """Of the time in which it was busy."""
        return self.busy / self.wall if self.wall > 0 else 0.0


@dataclass(frozen=True)
class StandingRow:
    """Where a tenant that waits or is being served stands in the line before a stage."""

    stage: str
    tenant: str
    waiting: int
    behind: float
    """What it has had less, by its weight, than the tenant that has had most: at rollout in tokens as they cost, at
    training in microseconds."""


@dataclass(frozen=True)
class TenantSeconds:
    """What a tenant's tasks have used in a day."""

    tenant: str
    weight: float
    rollout: float
    """Seconds of the rollout worker."""
    training: float
    """Seconds of the training worker."""


def newest(reader: Reader) -> tuple[float, float]:
    """When the newest samples began and ended, in seconds of the epoch; 0 where there are none."""
    rows = reader.all("SELECT begun, begun + wall FROM stages ORDER BY id DESC LIMIT 1")
    return tuple(rows[0]) if rows else (0.0, 0.0)


def spans(reader: Reader, since: float, grain: int) -> list[StageSample]:
    """Every stage on every device, and each environment worker of the newest engine; the samples of ``grain`` seconds
    (by the clock) put together, oldest first."""
    rows = reader.all(
        f"SELECT stage, device, min(begun) AS begun, {_SUMS} FROM stages WHERE stage IN ({_WITH_WORKERS})"
        " AND begun >= ? GROUP BY stage, device, CAST(begun / ? AS INT) ORDER BY begun",
        since,
        grain,
    )
    return [StageSample(**dict(row)) for row in rows]


def totals(reader: Reader, since: float) -> dict[str, StageSample]:
    """Every stage since a time in one span, whatever the device; several workers of one count as one that was busy for
    their mean time."""
    together = (
        "SELECT stage, max(device) AS device, begun, max(wall) AS wall, total(busy) / count(*) AS busy,"
        " total(waiting) AS waiting, total(active) AS active, sum(ended) AS ended, sum(tokens) AS tokens"
        f" FROM stages WHERE {_LISTED} AND begun >= ? GROUP BY stage, begun"
    )
    rows = reader.all(
        f"SELECT stage, max(device) AS device, min(begun) AS begun, {_SUMS} FROM ({together}) GROUP BY stage", since
    )
    return {row["stage"]: StageSample(**dict(row)) for row in rows}


def steps_since(reader: Reader, since: float) -> int:
    """Optimizer steps that were committed since a time not long ago."""
    newest = f"SELECT created FROM steps ORDER BY id DESC LIMIT {_NEWEST_STEPS}"
    return int(reader.all(f"SELECT count(*) FROM ({newest}) WHERE created >= ?", since)[0][0])


def standings(reader: Reader) -> list[StandingRow]:
    """Who stands in line at this moment, as the engine last wrote it."""
    rows = reader.all("SELECT stage, tenant, waiting, behind FROM standings ORDER BY tenant, stage")
    return [StandingRow(**dict(row)) for row in rows]


def seconds_used(reader: Reader, day: str) -> list[TenantSeconds]:
    """Tenants that used a shared stage in a day (2026-11-21, UTC), or have a task that runs; by name."""
    rows = reader.all(
        "SELECT t.tenant, coalesce(n.weight, 1.0) AS weight,"
        " total(u.seconds) FILTER (WHERE u.stage = 'rollout') AS rollout,"
        " total(u.seconds) FILTER (WHERE u.stage = 'training') AS training"
        " FROM tasks t LEFT JOIN usage u ON u.task = t.id AND u.day = ? LEFT JOIN tenants n ON n.name = t.tenant"
        " WHERE u.task IS NOT NULL OR t.state = 'running' GROUP BY t.tenant ORDER BY t.tenant",
        day,
    )
    return [TenantSeconds(**dict(row)) for row in rows]


def starts(reader: Reader, limit: int) -> list[EngineRow]:
    """The newest engines of the home, newest first."""
    rows = reader.all("SELECT * FROM engines ORDER BY incarnation DESC LIMIT ?", limit)
    return [EngineRow(**dict(row)) for row in rows]
