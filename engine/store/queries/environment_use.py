"""Reads how the episodes of each environment have ended lately, and how long they took. Standard library only."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ...environments import quantile
from .reader import Reader

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
