"""Reads of machines, stages, engines and the log."""

from __future__ import annotations

import json
import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ...devices.machine import Holder
from ...environments.durations import quantile
from ...fairness.line import Standing
from ..rows import EventRow
from .reader import Reader


@dataclass(frozen=True)
class DeviceRow:
    """One GPU."""

    uuid: str
    label: str
    name: str
    memory: int
    free: int
    utilisation: float | None
    """Share of the last moment, 0 to 1; None: unknown."""
    reason: str
    holders: tuple[Holder, ...]
    updated: float


def devices(reader: Reader) -> list[DeviceRow]:
    """As last seen, in the driver's order."""
    rows = reader.all("SELECT * FROM devices ORDER BY place")
    return [
        DeviceRow(
            holders=tuple(Holder(**holder) for holder in json.loads(row["holders"])),
            **{name: row[name] for name in row.keys() if name not in ("place", "holders")},  # noqa: SIM118 (a Row)
        )
        for row in rows
    ]


@dataclass(frozen=True)
class NodeRow:
    """One machine of the cluster."""

    id: str
    """Ray's id, new each time it joins."""
    name: str
    address: str
    alive: bool
    here: bool
    draining: bool = False
    refused: str = ""
    cores: int = 0
    memory: int = 0
    cards: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    clock: float | None = None
    """Seconds ahead of the engine's; None: unknown."""
    versions: str = ""
    workers: tuple[str, ...] = ()
    updated: float = 0.0

    @property
    def state(self) -> str:
        if not self.alive:
            return "gone"
        return "refused" if self.refused else "draining" if self.draining else "ready"


def nodes(reader: Reader) -> list[NodeRow]:
    """As last seen: the engine's own first, then by name; empty without a cluster."""
    return [
        NodeRow(
            id=row["id"],
            name=row["name"],
            address=row["address"],
            alive=bool(row["alive"]),
            here=bool(row["here"]),
            draining=bool(row["draining"]),
            refused=row["refused"],
            cores=row["cores"],
            memory=row["memory"],
            cards=tuple(json.loads(row["cards"])),
            left_out=tuple(json.loads(row["left_out"])),
            clock=row["clock"],
            versions=row["versions"],
            workers=tuple(json.loads(row["workers"])),
            updated=row["updated"],
        )
        for row in reader.all("SELECT * FROM nodes ORDER BY here DESC, name, id")
    ]


def drained_nodes(reader: Reader) -> frozenset[str]:
    """Includes requests since the last engine ended."""
    drained = {row["node"] for row in reader.all("SELECT node FROM drains")}
    for row in reader.all(
        "SELECT kind, arguments FROM commands WHERE kind IN ('drain_node', 'undrain_node') AND done IS NULL ORDER BY id"
    ):
        node = json.loads(row["arguments"]).get("node")
        drained = drained | {node} if row["kind"] == "drain_node" else drained - {node}
    return frozenset(drained)


LATELY = 3600.0
"""Seconds."""

_OUTCOMES = (
    "SELECT environment, version, status, bucket, sum(episodes) AS episodes FROM outcomes WHERE begun >= ?"
    " GROUP BY environment, version, status, bucket"
)
_FAILURES = "SELECT * FROM failures WHERE created >= ? ORDER BY created"


@dataclass(frozen=True)
class EpisodeUse:
    """Outcomes and durations of episodes."""

    statuses: Mapping[str, int] = field(default_factory=dict)
    median: float = 0.0
    slow: float = 0.0

    @property
    def episodes(self) -> int:
        return sum(self.statuses.values())

    @property
    def failed(self) -> float:
        bad = self.statuses.get("error", 0) + self.statuses.get("timeout", 0)
        return bad / self.episodes if self.episodes else 0.0


@dataclass(frozen=True)
class EpisodeFailure:
    """The last failure."""

    message: str
    file: str
    line: int
    version: str
    created: float


@dataclass(frozen=True)
class EnvironmentUse(EpisodeUse):
    """The last hour's episodes, all versions together."""

    versions: Mapping[str, EpisodeUse] = field(default_factory=dict)
    failure: EpisodeFailure | None = None


def environment_use(reader: Reader, now: float, seconds: float = LATELY) -> dict[str, EnvironmentUse]:
    """By "plugin/environment", in the ``seconds`` before ``now``."""
    failures = {
        row["environment"]: EpisodeFailure(row["message"], row["file"], row["line"], row["version"], row["created"])
        for row in reader.all(_FAILURES, now - seconds)
    }
    counts: defaultdict[str, list[tuple[str, str, int, int]]] = defaultdict(list)
    for row in reader.all(_OUTCOMES, now - seconds):
        counts[row["environment"]].append((row["version"], row["status"], row["bucket"], row["episodes"]))
    return {name: _environment(rows, failures.get(name)) for name, rows in counts.items()}


def _environment(rows: Iterable[tuple[str, str, int, int]], failure: EpisodeFailure | None) -> EnvironmentUse:
    rows = list(rows)
    versions = {
        name: EpisodeUse(*_summed(row for row in rows if row[0] == name)) for name in sorted({r[0] for r in rows})
    }
    return EnvironmentUse(*_summed(rows), versions, failure)


def _summed(rows: Iterable[tuple[str, str, int, int]]) -> tuple[Mapping[str, int], float, float]:
    statuses, seconds = Counter[str](), Counter[int]()
    for _, status, bucket, episodes in rows:
        statuses[status] += episodes
        seconds[bucket] += episodes * (status == "ok")
    return +statuses, quantile(+seconds, 0.5), quantile(+seconds, 0.95)


# By stage it is stored by the second, by task by the UTC day.

_STAGES = """
SELECT stage, device, min(begun) AS begun, total(wall) AS wall, total(busy) AS busy, sum(ended) AS ended,
       total(waiting * wall) / max(total(wall), 1e-9) AS waiting,
       total(active * wall) / max(total(wall), 1e-9) AS active
FROM stages WHERE begun >= ? AND stage NOT LIKE 'env %' GROUP BY stage, device ORDER BY min(id)
"""
_TASKS = """
SELECT t.id, t.tenant, t.name, t.state, coalesce(u.tokens, 0) AS tokens, coalesce(u.rollout, 0.0) AS rollout,
       coalesce(u.environment, 0.0) AS environment, coalesce(u.training, 0.0) AS training,
       CASE WHEN t.state != 'running' THEN 0 ELSE (
           SELECT count(*) FROM policies p JOIN groups g ON g.policy = p.id AND g.split = 'train'
               AND g.number >= CASE json_extract(t.config, '$.train.order') WHEN 'arrival' THEN 0
                   ELSE p.step * json_extract(t.config, '$.train.groups_per_step') END AND g.state = 'complete'
           WHERE p.task = t.id) END AS ready
FROM tasks t LEFT JOIN (
    SELECT task, sum(tokens) AS tokens, total(seconds) FILTER (WHERE stage = 'rollout') AS rollout,
           total(seconds) FILTER (WHERE stage = 'environment') AS environment,
           total(seconds) FILTER (WHERE stage = 'training') AS training
    FROM usage WHERE day >= ? GROUP BY task) u ON u.task = t.id
WHERE u.task IS NOT NULL OR t.state = 'running' ORDER BY t.id
"""


@dataclass(frozen=True)
class Use:
    """Seconds of stages, and tokens."""

    tenant: str
    rollout: float
    training: float
    environment: float = 0.0
    tokens: int = 0


@dataclass(frozen=True, kw_only=True)
class TaskUse(Use):
    """A task's use."""

    id: int
    name: str
    state: str
    ready: int


@dataclass(frozen=True, kw_only=True)
class TenantUse(Use):
    """A tenant's use."""

    weight: float
    share: float = 0.0


def stages(reader: Reader, since: float) -> list[StageSample]:
    """One row for each device; ``since``: seconds since 1970."""
    return reader.rows(StageSample, _STAGES, since)


def tasks_used(reader: Reader, day: str) -> list[TaskUse]:
    """Running, or used something since the UTC day began."""
    return reader.rows(TaskUse, _TASKS, day)


def weights(reader: Reader) -> dict[str, float]:
    """A missing tenant has weight 1."""
    return {row["name"]: row["weight"] for row in reader.all("SELECT name, weight FROM tenants")}


def engine_cost(stages: Sequence[StageSample]) -> float | None:
    """Processor seconds for each ended episode."""
    episodes = sum(stage.ended for stage in stages if stage.stage == "environment")
    return sum(stage.busy for stage in stages if stage.stage == "engine") / episodes if episodes else None


STAGES = ("rollout", "environment", "training", "engine")
_NEWEST_STEPS = 5000
_SUMS = """total(wall) AS wall, total(busy) AS busy,
    total(waiting * wall) / max(total(wall), 1e-9) AS waiting, total(active * wall) / max(total(wall), 1e-9) AS active,
    sum(ended) AS ended, sum(tokens) AS tokens"""
WORKER = "env "
"""Of environment workers' names in samples."""
_LISTED = f"stage IN ({', '.join(repr(stage) for stage in STAGES)})"
_WITH_WORKERS = f"VALUES {', '.join(f'({stage!r})' for stage in STAGES)} UNION SELECT name FROM workers"


@dataclass(frozen=True)
class StageSample:
    """Work of a stage or an environment worker."""

    stage: str
    """rollout, environment, training, engine, or env NAME"""
    device: str
    begun: float
    wall: float
    busy: float
    """Useful seconds; of several processes, summed processor time."""
    waiting: float = 0.0
    active: float = 0.0
    ended: int = 0
    tokens: int = 0
    read: int = 0
    passes: int = 0
    """Over the base, each sampling one token for all its conversations (rollout)."""

    @property
    def share(self) -> float:
        return self.busy / self.wall if self.wall > 0 else 0.0


@dataclass(frozen=True, kw_only=True)
class StandingRow(Standing):
    """A tenant's place in a stage's queue.

    ``behind`` is in cost-weighted tokens (rollout) or microseconds (training).
    """

    stage: str


def newest_samples(reader: Reader) -> tuple[float, float]:
    """Begin and end in seconds since 1970; 0: none."""
    rows = reader.all("SELECT begun, begun + wall FROM stages ORDER BY id DESC LIMIT 1")
    return tuple(rows[0]) if rows else (0.0, 0.0)


def stage_spans(reader: Reader, since: float, grain: int) -> list[StageSample]:
    """Of stages, devices, and the newest engine's environment workers, oldest first.

    Merged within each ``grain`` seconds of the clock.
    """
    rows = reader.all(
        f"SELECT stage, device, min(begun) AS begun, {_SUMS} FROM stages WHERE stage IN ({_WITH_WORKERS})"
        " AND begun >= ? GROUP BY stage, device, CAST(begun / ? AS INT) ORDER BY begun",
        since,
        grain,
    )
    return [StageSample(**dict(row)) for row in rows]


def stage_totals(reader: Reader, since: float) -> dict[str, StageSample]:
    """One sample a stage over all devices; busy time is its workers' mean."""
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
    """Turns a second of all samplers, over the last ``over`` measured seconds."""
    newest = "(SELECT max(begun) FROM stages WHERE stage = 'rollout')"
    rows = reader.all(
        "SELECT total(ended) AS ended, max(begun + wall) - min(begun) AS seconds FROM stages WHERE stage = 'rollout'"
        f" AND begun > {newest} - ?",
        over,
    )
    ended, seconds = rows[0]["ended"], rows[0]["seconds"]
    return ended / seconds if seconds else None


def steps_since(reader: Reader, since: float) -> int:
    """Of the newest 5,000 optimizer steps."""
    newest = f"SELECT created FROM steps ORDER BY id DESC LIMIT {_NEWEST_STEPS}"
    return int(reader.all(f"SELECT count(*) FROM ({newest}) WHERE created >= ?", since)[0][0])


def standings(reader: Reader) -> list[StandingRow]:
    """As last written."""
    return reader.rows(StandingRow, "SELECT stage, tenant, waiting, behind FROM standings ORDER BY tenant, stage")


def tenants_used(reader: Reader, day: str) -> list[TenantUse]:
    """Tenants with a running task, or use of a shared stage since the UTC day began; by name."""
    of_stages = "total(u.seconds) FILTER (WHERE u.stage IN ({}))"
    rollout, training, environment = map(of_stages.format, ("'rollout'", "'training'", "'environment'"))
    shared = of_stages.format("'rollout', 'training'")
    rows = reader.all(
        f"SELECT t.tenant, coalesce(n.weight, 1.0) AS weight, {rollout} AS rollout, {training} AS training,"
        f" {environment} AS environment, coalesce(sum(u.tokens), 0) AS tokens,"
        f" coalesce({shared} / nullif(sum({shared}) OVER (), 0.0), 0.0) AS share"
        " FROM tasks t LEFT JOIN usage u ON u.task = t.id AND u.day >= ? LEFT JOIN tenants n ON n.name = t.tenant"
        " WHERE t.id IN (SELECT task FROM usage WHERE day >= ?) OR t.state = 'running'"
        " GROUP BY t.tenant ORDER BY t.tenant",
        day,
        day,
    )
    return [TenantUse(**dict(row)) for row in rows]


# Ids only: 100,000 lines are listed without being read.

LEVELS = ("info", "warning", "error")


@dataclass(frozen=True)
class EventFilter:
    """All set fields must match."""

    words: tuple[str, ...] = ()
    level: str = ""
    task: int | None = None
    tenant: str = ""
    kind: str = ""
    since: float = 0.0

    @property
    def levels(self) -> tuple[str, ...]:
        return LEVELS[LEVELS.index(self.level) :] if self.level else LEVELS


EVERYTHING = EventFilter()


def event_ids(reader: Reader, wanted: EventFilter, after: int = 0) -> array[int]:
    """Above ``after``, oldest first."""
    where, arguments = _where(wanted)
    return array(
        "q",
        (row[0] for row in reader.all(f"SELECT id FROM events WHERE id > ? {where} ORDER BY id", after, *arguments)),
    )


def event_rows(reader: Reader, wanted: Sequence[int]) -> dict[int, EventRow]:
    """Without missing ones."""
    found = reader.all(
        "SELECT id, task, level, kind, message, created FROM events WHERE id IN (SELECT value FROM json_each(?))",
        json.dumps(list(wanted)),
    )
    return {row["id"]: EventRow(**dict(row)) for row in found}


def newest_events(reader: Reader, wanted: EventFilter = EVERYTHING, after: int = 0, limit: int = 200) -> list[EventRow]:
    """The last ``limit`` matches with an id above ``after``, oldest first."""
    where, arguments = _where(wanted)
    found = reader.all(
        f"SELECT id, task, level, kind, message, created FROM events WHERE id > ? {where} ORDER BY id DESC LIMIT ?",
        after,
        *arguments,
        limit,
    )
    return [EventRow(**dict(row)) for row in reversed(found)]


def event_bounds(reader: Reader) -> tuple[int, int]:
    """Oldest, newest; 0: none."""
    least, most = (f"(SELECT coalesce({end}(id), 0) FROM events)" for end in ("min", "max"))  # together they would scan
    return tuple(reader.all(f"SELECT {least}, {most}")[0])


def _where(wanted: EventFilter) -> tuple[str, list[str | float]]:
    like = "{} LIKE ? ESCAPE '\\'"
    options: list[tuple[object, str, str | float]] = [
        *((True, like.format("message"), _like(word)) for word in wanted.words),
        (wanted.kind, like.format("kind"), _like(wanted.kind)),
        (wanted.level, "level IN (SELECT value FROM json_each(?))", json.dumps(wanted.levels)),
        (wanted.task is not None, "task = ?", wanted.task or 0),
        (wanted.since, "created >= ?", wanted.since),
        (wanted.tenant, f"task IN (SELECT id FROM tasks WHERE {like.format('tenant')})", _like(wanted.tenant)),
    ]
    chosen = [(sql, value) for is_set, sql, value in options if is_set]
    return "".join(f" AND {sql}" for sql, _ in chosen), [value for _, value in chosen]


def _like(text: str) -> str:
    return "%" + re.sub(r"([\\%_])", r"\\\1", text) + "%"
