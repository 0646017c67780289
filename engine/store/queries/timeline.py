"""Reads for the view of the machine: what stages did over time, tenants' places in line, past engines.

Standard library only; every query is short, however old the home is.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..rows import EngineRow
from .reader import Reader

STAGES = ("rollout", "environment", "training", "engine")
"""The stages in the order in which an episode passes them; the engine last."""
_NEWEST_STEPS = 5000
"""The newest steps among which ``steps_since`` counts."""
_SUMS = """total(wall) AS wall, total(busy) AS busy,
    total(waiting * wall) / max(total(wall), 1e-9) AS waiting, total(active * wall) / max(total(wall), 1e-9) AS active,
    sum(ended) AS ended, sum(tokens) AS tokens"""
WORKER = "env "
"""Prefix of the names of environment workers; each has samples of its own beside those of its stage."""
_LISTED = f"stage IN ({', '.join(repr(stage) for stage in STAGES)})"
_WITH_WORKERS = f"VALUES {', '.join(f'({stage!r})' for stage in STAGES)} UNION SELECT name FROM workers"


@dataclass(frozen=True)
class StageSample:
    """What a stage, or one environment worker, did in some seconds."""

    stage: str
    """rollout, environment, training or engine; or a worker of the environment stage: env NAME"""
    device: str
    """What it computes on, in words."""
    begun: float
    wall: float
    """Seconds that the sample covers."""
    busy: float
    """Seconds of them with useful work; for several processes, the sum of their processor time."""
    waiting: float
    """Requests that waited, on average."""
    active: float
    """Requests under way, on average."""
    ended: int
    """Turns, episodes or calls that ended."""
    tokens: int = 0
    """Tokens sampled (rollout) or trained on (training)."""
    read: int = 0
    """Tokens of prompts that were read (rollout)."""
    passes: int = 0
    """Passes over the base, each of which sampled one token for all conversations in it (rollout)."""

    @property
    def share(self) -> float:
        """Share of the time in which it was busy."""
        return self.busy / self.wall if self.wall > 0 else 0.0


@dataclass(frozen=True)
class StandingRow:
    """Where a tenant that waits or is being served stands in the line before a stage."""

    stage: str
    tenant: str
    waiting: int
    behind: float
    """How much less service, divided by its weight, it has had than the tenant with the most: at rollout in tokens
    weighted by their cost, at training in microseconds."""


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
    """When the newest sample began and ended, in seconds since 1970; 0 where there is none."""
    rows = reader.all("SELECT begun, begun + wall FROM stages ORDER BY id DESC LIMIT 1")
    return tuple(rows[0]) if rows else (0.0, 0.0)


def spans(reader: Reader, since: float, grain: int) -> list[StageSample]:
    """Samples of every stage on every device, and of each environment worker of the newest engine, oldest first.

    Those within each ``grain`` seconds of the clock are merged into one.
    """
    rows = reader.all(
        f"SELECT stage, device, min(begun) AS begun, {_SUMS} FROM stages WHERE stage IN ({_WITH_WORKERS})"
        " AND begun >= ? GROUP BY stage, device, CAST(begun / ? AS INT) ORDER BY begun",
        since,
        grain,
    )
    return [StageSample(**dict(row)) for row in rows]


def totals(reader: Reader, since: float) -> dict[str, StageSample]:
    """Each stage since a time as one sample, over all devices; the busy time is the mean of its workers'."""
    together = (
        "SELECT stage, max(device) AS device, begun, max(wall) AS wall, total(busy) / count(*) AS busy,"
        " total(waiting) AS waiting, total(active) AS active, sum(ended) AS ended, sum(tokens) AS tokens"
        f" FROM stages WHERE {_LISTED} AND begun >= ? GROUP BY stage, begun"
    )
    rows = reader.all(
        f"SELECT stage, max(device) AS device, min(begun) AS begun, {_SUMS} FROM ({together}) GROUP BY stage", since
    )
    return {row["stage"]: StageSample(**dict(row)) for row in rows}


def turn_rate(reader: Reader, over: float = 10.0) -> float | None:
    """Turns a second that all samplers together ended over the last ``over`` seconds that were measured; None where
    nothing was."""
    newest = "(SELECT max(begun) FROM stages WHERE stage = 'rollout')"
    rows = reader.all(
        "SELECT total(ended) AS ended, max(begun + wall) - min(begun) AS seconds FROM stages WHERE stage = 'rollout'"
        f" AND begun > {newest} - ?",
        over,
    )
    ended, seconds = rows[0]["ended"], rows[0]["seconds"]
    return ended / seconds if seconds else None


def steps_since(reader: Reader, since: float) -> int:
    """Optimizer steps that were committed since a recent time; at most the newest 5,000 count."""
    newest = f"SELECT created FROM steps ORDER BY id DESC LIMIT {_NEWEST_STEPS}"
    return int(reader.all(f"SELECT count(*) FROM ({newest}) WHERE created >= ?", since)[0][0])


def standings(reader: Reader) -> list[StandingRow]:
    """Tenants' places in line, as the engine last wrote them."""
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
    return [reader.engine_row(row) for row in rows]
