"""Who died where: kills by process and by named point, as a table. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from marlaas.engine.faults import Point, Reached


@dataclass(frozen=True)
class Kill:
    """One death; at a named point the record says which process died."""

    process: str
    point: Point | None


def table(kills: Sequence[Kill], record: Sequence[Reached]) -> list[str]:
    """Lines for people: deaths at random moments by process, deaths by point, and how often each point was reached."""
    at_random = Counter(kill.process for kill in kills if kill.point is None)
    died = Counter((one.point, one.process) for one in record if one.died)
    reached = Counter(one.point for one in record)
    lines = [f"{count:6}  {process}, at a random moment" for process, count in sorted(at_random.items())]
    for point in Point:
        where = " and ".join(f"{n} {process}" for (one, process), n in sorted(died.items()) if one == point) or "none"
        lines.append(f"{_at(died, point):6}  {point} ({where}; reached {reached[point]:,} times)")
    named = sum(died.values())
    processes: Counter[str] = Counter(at_random)
    for (_, process), count in died.items():
        processes[process] += count
    shares = ", ".join(f"{process} {count}" for process, count in sorted(processes.items()))
    lines.append(f"{sum(at_random.values()) + named:6}  kills: {sum(at_random.values())} at random, {named} at points")
    lines.append(f"        by process: {shares}")
    return lines


def _at(died: Mapping[tuple[Point, str], int], point: Point) -> int:
    return sum(count for (one, _), count in died.items() if one == point)
