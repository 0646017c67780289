"""The figures of a run, real or simulated: read from its database by the same queries, so that the two compare."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from ..fairness import stage_of
from ..store import Reader, StageSample, timings

WAITED = 0.95


@dataclass(frozen=True)
class Figures:
    """The figures of all tasks of a run."""

    tasks: int
    done: int
    steps: int
    episodes: int
    turns: int
    makespan: float
    """Seconds from the first submission to the last end."""
    reply_wait: float
    """Seconds within which 95 % of the turns were answered, the wait for a slot included."""
    start_wait: float
    """Seconds within which 95 % of the tasks had started after they were submitted."""
    idle: dict[str, float] = field(default_factory=dict)
    """Idle share of the makespan, by stage and device."""
    shares: dict[str, dict[str, float]] = field(default_factory=dict)
    staleness: dict[int, int] = field(default_factory=dict)
    beyond: int = 0
    """Consumed groups that were older than their task allows."""
    gaps: int = 0
    """Missing or repeated groups, steps and versions."""
    reasons: tuple[str, ...] = ()

    def idle_of(self, stage: str) -> float:
        own = [share for name, share in self.idle.items() if stage_of(name.partition(" ")[0]) == stage]
        return math.fsum(own) / len(own) if own else 1.0


def measure(database: Path, after: int = 0) -> Figures:
    """The figures of the tasks above a number. Raises ``StoreError``."""
    with Reader(database) as reader:
        tasks = [task for task in reader.tasks() if task.id > after]
        begun = min((task.created for task in tasks), default=0.0)
        ended = max((task.finished or task.created for task in tasks), default=0.0)
        makespan = ended - begun
        histories = timings.policy_histories(reader, after)
        waits, episodes = _reply_waits(reader, after)
        staleness = timings.staleness_counts(reader, after)
        bound = max((history.bound for history in histories), default=0)
        started = [task.started - task.created for task in tasks if task.started is not None]
        return Figures(
            tasks=len(tasks),
            done=sum(task.state == "done" for task in tasks),
            steps=sum(history.step for history in histories),
            episodes=episodes,
            turns=len(waits),
            makespan=makespan,
            reply_wait=quantile(waits, WAITED),
            start_wait=quantile(started, WAITED),
            idle=_idle(timings.device_use(reader, begun), makespan),
            shares=_shares(timings.tenant_seconds(reader, after)),
            staleness=staleness,
            beyond=sum(count for age, count in staleness.items() if not 0 <= age <= bound),
            gaps=sum(history.gaps for history in histories),
            reasons=tuple(dict.fromkeys(task.reason for task in tasks if task.state in ("failed", "paused"))),
        )


def quantile(values: Sequence[float], share: float) -> float:
    """The value that ``share`` of all do not exceed; 0 if there are none."""
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)] if ordered else 0.0


def _reply_waits(reader: Reader, after: int) -> tuple[list[float], int]:
    waits: list[float] = []
    seen: set[tuple[int, int]] = set()
    for row in timings.timings_of(reader, after):
        if (row.play, row.member) not in seen:  # once for a play that several policies learn from
            seen.add((row.play, row.member))
            waits += [answered - asked for _, asked, answered in row.turns]
    return waits, len(seen)


def _idle(uses: Sequence[StageSample], makespan: float) -> dict[str, float]:
    if makespan <= 0:
        return {}
    return {f"{use.stage} on {use.device}": max(0.0, 1 - use.busy / makespan) for use in uses if use.stage != "engine"}


def _shares(seconds: dict[tuple[str, str], float]) -> dict[str, dict[str, float]]:
    totals: defaultdict[str, float] = defaultdict(float)
    for (stage, _), spent in seconds.items():
        totals[stage] += spent
    found: defaultdict[str, dict[str, float]] = defaultdict(dict)
    for (stage, tenant), spent in seconds.items():
        found[stage][tenant] = spent / totals[stage] if totals[stage] else 0.0
    return dict(found)
