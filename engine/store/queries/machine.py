"""Reads of the machine: cards, nodes, environments, how busy stages were and who used them."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Self

from ...devices import Holder
from ...environments import quantile
from .reader import Reader

# Reads the machine's cards as the engine last saw them. Standard library only.


@dataclass(frozen=True)
class DeviceRow:
    """One card."""

    uuid: str
    label: str
    """``gpu 0``"""
    name: str
    memory: int
    """Bytes of memory in all."""
    free: int
    """Bytes of memory that no process holds."""
    utilisation: float | None
    """Share of the time just before in which it computed, 0 to 1; None where the driver does not say."""
    reason: str
    """Why the engine does not use it, in one sentence; empty where it may."""
    holders: tuple[Holder, ...]
    """Processes that hold memory of it, the largest first."""
    updated: float
    """In seconds since 1970."""


def device_rows(reader: Reader) -> list[DeviceRow]:
    """All cards, in the driver's order; none where the engine has seen none."""
    rows = reader.all("SELECT * FROM devices ORDER BY place")
    return [
        DeviceRow(
            holders=tuple(Holder(**holder) for holder in json.loads(row["holders"])),
            **{name: row[name] for name in row.keys() if name not in ("place", "holders")},  # noqa: SIM118 (a Row)
        )
        for row in rows
    ]


def held_by(rows: Sequence[DeviceRow]) -> dict[int, int]:
    """Bytes of memory that each process (by pid) holds on all cards together."""
    held: dict[int, int] = {}
    for row in rows:
        for holder in row.holders:
            held[holder.pid] = held.get(holder.pid, 0) + holder.memory
    return held


# Reads the nodes of the cluster as the engine last saw them. Standard library only.


@dataclass(frozen=True)
class NodeRow:
    """One machine of the cluster."""

    id: str
    """Ray's id: another each time that the machine joins."""
    name: str
    """What people call it."""
    address: str
    """Its address in the cluster."""
    alive: bool
    here: bool
    """Whether it is the engine's own machine."""
    draining: bool = False
    """Whether it gets nothing new."""
    refused: str = ""
    """Why it is not used, in one sentence; empty where it is."""
    cores: int = 0
    """Cores that may be used there."""
    memory: int = 0
    """Bytes of main memory that were free there."""
    cards: tuple[str, ...] = ()
    """Labels and names of the cards that may be used."""
    left_out: tuple[str, ...] = ()
    """Why other cards are left alone, in a sentence each."""
    clock: float | None = None
    """Seconds by which its clock is ahead of the engine's; None where that is not known."""
    versions: str = ""
    """``Python 3.12.3, torch 2.11.0``"""
    workers: tuple[str, ...] = ()
    """Names of the workers that run there."""
    updated: float = 0.0
    """When the engine last heard of it, in seconds since 1970."""

    @property
    def state(self) -> str:
        """``ready``, ``draining``, ``refused`` or ``gone``."""
        if not self.alive:
            return "gone"
        return "refused" if self.refused else "draining" if self.draining else "ready"


def node_rows(reader: Reader) -> list[NodeRow]:
    """All nodes, the engine's machine first, then by name; none where the engine knows of no cluster."""
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
    """Names of the nodes that people drain, with what they have asked for since the last engine ended."""
    drained = {row["node"] for row in reader.all("SELECT node FROM drains")}
    asked = reader.all(
        "SELECT kind, arguments FROM commands WHERE kind IN ('drain_node', 'undrain_node') AND done IS NULL ORDER BY id"
    )
    for row in asked:
        node = json.loads(row["arguments"]).get("node")
        drained = drained | {node} if row["kind"] == "drain_node" else drained - {node}
    return frozenset(drained)


# Reads how the episodes of each environment have ended lately, and how long they took. Standard library only.

LATELY = 3600.0
"""Seconds before the present that count."""

_OUTCOMES = (
    "SELECT environment, version, status, bucket, sum(episodes) AS episodes FROM outcomes WHERE begun >= ?"
    " GROUP BY environment, version, status, bucket"
)
_FAILURES = "SELECT * FROM failures WHERE created >= ? ORDER BY created"


@dataclass(frozen=True)
class EpisodeUse:
    """How some episodes ended and how long they took."""

    statuses: Mapping[str, int] = field(default_factory=dict)
    """How many ended with each status: ok, skip, timeout, error or cancelled."""
    median: float = 0.0
    """Median seconds of the episodes that ended ok, waiting for the model included."""
    slow: float = 0.0
    """The 95th percentile of these seconds."""

    @property
    def episodes(self) -> int:
        """The number of episodes."""
        return sum(self.statuses.values())

    @property
    def failed(self) -> float:
        """Share of the episodes that ended by an error or a time limit."""
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
    """The last hour's episodes of one environment, of all its versions together."""

    versions: Mapping[str, EpisodeUse] = field(default_factory=dict)
    """The same for each version."""
    failure: EpisodeFailure | None = None


def environment_use(reader: Reader, now: float, seconds: float = LATELY) -> dict[str, EnvironmentUse]:
    """The use of each environment ("plugin/environment") with an episode that ended in ``seconds`` before ``now``."""
    failures = {
        row["environment"]: EpisodeFailure(row["message"], row["file"], row["line"], row["version"], row["created"])
        for row in reader.all(_FAILURES, now - seconds)
    }
    counts: defaultdict[str, list[tuple[str, str, int, int]]] = defaultdict(list)
    for row in reader.all(_OUTCOMES, now - seconds):
        counts[row["environment"]].append((row["version"], row["status"], row["bucket"], row["episodes"]))
    return {name: _environment(rows, failures.get(name)) for name, rows in counts.items()}


def _environment(rows: Iterable[tuple[str, str, int, int]], failure: EpisodeFailure | None) -> EnvironmentUse:
    whole, by_version = _Sums(), defaultdict[str, _Sums](_Sums)
    for version, status, bucket, episodes in rows:
        whole.add(status, bucket, episodes)
        by_version[version].add(status, bucket, episodes)
    versions = {version: EpisodeUse(*sums.summary()) for version, sums in by_version.items()}
    return EnvironmentUse(*whole.summary(), versions, failure)


class _Sums:
    def __init__(self) -> None:
        self._statuses: Counter[str] = Counter()
        self._ok: Counter[int] = Counter()
        """Episodes that ended ok, by bucket of their seconds."""

    def add(self, status: str, bucket: int, episodes: int) -> None:
        self._statuses[status] += episodes
        if status == "ok":
            self._ok[bucket] += episodes

    def summary(self) -> tuple[Mapping[str, int], float, float]:
        statuses = {status: episodes for status, episodes in self._statuses.items() if episodes > 0}
        return statuses, quantile(self._ok, 0.5), quantile(self._ok, 0.95)


# Reads for ``marlaas stats``: how busy the stages were over a time, and who used them. Standard library only.
#
# Use by stage is stored by the second, use by task by the day (UTC).

_STAGES = """
SELECT stage, device, total(wall) AS wall, total(busy) AS busy, sum(ended) AS ended,
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
class StageUse:
    """What a stage did on a device."""

    stage: str
    """rollout, environment, training or engine"""
    device: str
    wall: float
    """Seconds in which an engine ran."""
    busy: float
    """Seconds of them with useful work; for environments and the engine, processor time."""
    waiting: float
    """Requests that waited, on average."""
    active: float
    """Requests under way, on average."""
    ended: int
    """Turns, episodes or calls that ended."""

    @property
    def utilisation(self) -> float:
        """Share of the wall time in which the device was busy with useful work."""
        return self.busy / self.wall if self.wall > 0 else 0.0


@dataclass(frozen=True)
class TaskUse:
    """What a task used."""

    id: int
    tenant: str
    name: str
    state: str
    tokens: int
    """Tokens read, sampled and trained on, as quotas count them."""
    rollout: float
    """Seconds of the rollout worker."""
    environment: float
    """Seconds that its episodes spent with their environments, side by side."""
    training: float
    """Seconds of the training worker."""
    ready: int
    """Groups that are complete and wait for their step."""


@dataclass(frozen=True)
class TenantUse:
    """What a tenant's tasks used together."""

    tenant: str
    weight: float
    tokens: int
    rollout: float
    environment: float
    training: float
    share: float
    """Its share of the seconds of the rollout and the training worker that all tenants used, 0 to 1."""


class Statistics(Reader):
    """A read-only view of one home's database, as ``Reader``."""

    def __enter__(self) -> Self:
        return self

    def stages(self, since: float) -> list[StageUse]:
        """All stages since a time in seconds since 1970, one row for each device that they ran on."""
        return [StageUse(**dict(row)) for row in self.all(_STAGES, since)]

    def tasks_used(self, day: str) -> list[TaskUse]:
        """Tasks that run, or used something since the beginning of a day (2026-11-21, UTC)."""
        return [TaskUse(**dict(row)) for row in self.all(_TASKS, day)]

    def weights(self) -> dict[str, float]:
        """Weights of tenants; a tenant that is missing has weight 1."""
        return {row["name"]: row["weight"] for row in self.all("SELECT name, weight FROM tenants")}


def tenants_used(tasks: Sequence[TaskUse], weights: dict[str, float]) -> list[TenantUse]:
    """The tasks' sums by tenant, in the order of names."""
    together = sum(task.rollout + task.training for task in tasks)
    used = []
    for tenant in sorted({task.tenant for task in tasks}):
        own = [task for task in tasks if task.tenant == tenant]
        rollout, training = sum(task.rollout for task in own), sum(task.training for task in own)
        used.append(
            TenantUse(
                tenant,
                weights.get(tenant, 1.0),
                sum(task.tokens for task in own),
                rollout,
                sum(task.environment for task in own),
                training,
                (rollout + training) / together if together > 0 else 0.0,
            )
        )
    return used


def engine_cost(stages: Sequence[StageUse]) -> float | None:
    """Processor seconds of the engine for each episode that ended; None where none did."""
    episodes = sum(stage.ended for stage in stages if stage.stage == "environment")
    return sum(stage.busy for stage in stages if stage.stage == "engine") / episodes if episodes else None
