"""Reads for ``marlaas stats``: how busy the stages were over a time, and who used them. Standard library only.

Use by stage is stored by the second, use by task by the day (UTC).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Self

from .reader import Reader

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
