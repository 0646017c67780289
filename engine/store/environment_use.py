"""How environments have fared lately: what came of their newest episodes, and how long those took. Standard library.

Rows of the store flow in, a summary for each environment and version flows out.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from .reader import Reader

NEWEST = 2000
"""Trajectories that are looked at: some minutes of a busy home."""

_NEWEST = """
SELECT t.environment AS name, g.environment_version AS version, j.status, max(j.seconds) AS seconds
FROM (SELECT id, "group", member, status, seconds FROM trajectories ORDER BY id DESC LIMIT ?) j
JOIN groups g ON g.id = j."group" JOIN policies p ON p.id = g.policy JOIN tasks t ON t.id = p.task
GROUP BY j."group", j.member ORDER BY max(j.id)
"""


@dataclass(frozen=True)
class EnvironmentUse:
    """What came of the newest episodes of one environment, on all of its versions."""

    episodes: int = 0
    statuses: Mapping[str, int] = field(default_factory=dict)
    """ok, skip, timeout, error or cancelled, and how many ended so."""
    median: float = 0.0
    """Seconds of an episode that was played to its end, waiting for the model included."""
    slow: float = 0.0
    """Seconds that one in twenty takes longer than."""

    @property
    def failed(self) -> float:
        """Share of the episodes that ended by an error or a time limit."""
        bad = self.statuses.get("error", 0) + self.statuses.get("timeout", 0)
        return bad / self.episodes if self.episodes else 0.0


def environment_use(reader: Reader, newest: int = NEWEST) -> dict[str, EnvironmentUse]:
    """By the name that task files give the environment, with its plugin or without."""
    statuses: dict[str, Counter[str]] = {}
    seconds: dict[str, list[float]] = {}
    for row in reader.all(_NEWEST, newest):
        statuses.setdefault(row["name"], Counter())[row["status"]] += 1
        if row["status"] == "ok" and row["seconds"] is not None:
            seconds.setdefault(row["name"], []).append(row["seconds"])
    return {name: _summary(counts, seconds.get(name, ())) for name, counts in statuses.items()}


def _summary(statuses: Counter[str], seconds: Iterable[float]) -> EnvironmentUse:
    ordered = sorted(seconds)

    def at(share: float) -> float:
        return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0

    return EnvironmentUse(statuses.total(), dict(statuses), at(0.5), at(0.95))
