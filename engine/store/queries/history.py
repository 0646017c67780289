"""Reads for charts: the metrics of a task's steps, as arrays. Standard library only.

Runs may have 100,000 steps, so a history that was read before can be passed in, and only later steps are read.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_left
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ..metric_names import stale_age
from .policies import POLICY
from .reader import Reader

_LAST = f"SELECT number, created FROM steps WHERE policy = {POLICY} ORDER BY number DESC LIMIT 1"
_SAME = f"SELECT 1 FROM steps WHERE policy = {POLICY} AND number = ? AND created = ?"
_VALUES = f"SELECT step, value FROM metrics WHERE policy = {POLICY} AND name = ? AND step > ? ORDER BY step"
_ENVIRONMENTS = f"""
SELECT number, environment_version FROM (
    SELECT number, environment_version, lag(environment_version, 1, ?) OVER (ORDER BY number) AS before
    FROM steps WHERE policy = {POLICY} AND environment_version != '' AND number > ?)
WHERE environment_version != before ORDER BY number
"""
# The plus signs keep sqlite from using the index by name, with which it would read every step.
_AGES = f"""
SELECT name, total(value) AS groups FROM metrics
WHERE policy = {POLICY} AND +name >= 'staleness_0' AND +name < 'staleness_:' AND step > ? GROUP BY +name
"""


@dataclass(frozen=True)
class Track:
    """One metric by step."""

    steps: array[int] = field(default_factory=lambda: array("q"))
    """Ascending."""
    values: array[float] = field(default_factory=lambda: array("d"))

    def at(self, step: int) -> float | None:
        """The value of a step; None where it recorded none."""
        place = self.place(step)
        return self.values[place] if place is not None and self.steps[place] == step else None

    def place(self, step: int) -> int | None:
        """The index of the step nearest to ``step``; None in an empty track."""
        if not self.steps:
            return None
        after = bisect_left(self.steps, step)
        near = [place for place in (after - 1, after) if 0 <= place < len(self.steps)]
        return min(near, key=lambda place: abs(self.steps[place] - step))


@dataclass(frozen=True)
class Change:
    """A step from which on a task trained on another environment version."""

    step: int
    environment_version: str


@dataclass(frozen=True)
class History:
    """The metrics and environment versions of a task's steps, up to the step ``last``."""

    tracks: Mapping[str, Track] = field(default_factory=dict)
    """By the metric's name."""
    environments: tuple[Change, ...] = ()
    """In order; the first is the version that training began with."""
    last: tuple[int, float] = (0, 0.0)
    """The newest step of the history, and when it was committed."""

    def environment_at(self, step: int) -> str:
        """The environment version that a step was trained on; empty where it is not known."""
        begun = [change.environment_version for change in self.environments if change.step <= step]
        return begun[-1] if begun else ""


def history(
    reader: Reader, task: int, names: Iterable[str], before: History | None = None, policy: str | None = None
) -> History:
    """The metrics ``names`` of a task's policy, by default its first.

    What ``before`` holds is not read again, unless its last step has been voided since.
    """
    known = before if before and reader.all(_SAME, task, policy, *before.last) else History()
    last = next(((row["number"], row["created"]) for row in reader.all(_LAST, task, policy)), (0, 0.0))
    version = known.environments[-1].environment_version if known.environments else ""
    changes = (Change(*row) for row in reader.all(_ENVIRONMENTS, version, task, policy, known.last[0]))
    tracks = {name: _longer(reader, task, policy, name, known.tracks.get(name, Track())) for name in names}
    return History(tracks, (*known.environments, *changes), last)


def _longer(reader: Reader, task: int, policy: str | None, name: str, track: Track) -> Track:
    rows = reader.all(_VALUES, task, policy, name, track.steps[-1] if track.steps else 0)
    if not rows:
        return track
    steps, values = track.steps[:], track.values[:]
    steps.extend(row[0] for row in rows)
    values.extend(map(_number, (row[1] for row in rows)))
    return Track(steps, values)


def _number(value: float | None) -> float:
    """A stored value, NaN for None: sqlite stores NaN as NULL."""
    return math.nan if value is None else value


def measured(reader: Reader, task: int, policy: str | None = None) -> tuple[int, int]:
    """How many evaluations there are, and the newest one's id; if both are unchanged, so are the evaluations."""
    count = f"SELECT count(*) AS count, coalesce(max(id), 0) AS id FROM evals WHERE policy = {POLICY}"
    (row,) = reader.all(count, task, policy)
    return row["count"], row["id"]


def samples(reader: Reader, task: int, most: int = 64, policy: str | None = None) -> dict[str, Track]:
    """All metrics at about ``most`` steps, spread evenly over the run, and at the newest two: for sparklines.

    The steps are multiples of a power of two, so that most stay the same as the run grows.
    """
    last = next((row["number"] for row in reader.all(_LAST, task, policy)), 0)
    apart = 1
    while last // apart > most:
        apart *= 2
    steps = sorted({*range(apart, last + 1, apart), *range(max(1, last - 1), last + 1)})
    marks = ",".join("?" * len(steps))
    rows = reader.all(
        f"SELECT name, step, value FROM metrics WHERE policy = {POLICY} AND step IN ({marks}) ORDER BY step",
        task,
        policy,
        *steps,
    )
    found: dict[str, Track] = {}
    for row in rows:
        track = found.setdefault(row["name"], Track())
        track.steps.append(row["step"])
        track.values.append(_number(row["value"]))
    return found


def recent(reader: Reader, task: int, over: int = 10, policy: str | None = None) -> dict[str, float]:
    """The mean of each metric over the last ``over`` steps that were made, of those that recorded it."""
    newest = f"(SELECT max(number) FROM steps WHERE policy = {POLICY})"
    rows = reader.all(  # the plus sign is there for the reason that _AGES has
        f"SELECT name, avg(value) AS mean FROM metrics WHERE policy = {POLICY} AND step > {newest} - ? GROUP BY +name",
        task,
        policy,
        task,
        policy,
        over,
    )
    return {row["name"]: row["mean"] for row in rows if row["mean"] is not None}


def ages(reader: Reader, task: int, after: int, policy: str | None = None) -> dict[int, int]:
    """How many groups of the steps above ``after`` had which staleness, in versions."""
    counted = {stale_age(row["name"]): int(row["groups"]) for row in reader.all(_AGES, task, policy, after)}
    return dict(sorted((age, groups) for age, groups in counted.items() if age is not None))
