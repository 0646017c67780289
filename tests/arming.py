"""Arms the fault points of a folder, and reads what processes recorded there; see ``engine/faults.py``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from marlaas.engine.faults import Point


@dataclass(frozen=True)
class Reached:
    """One line of the file ``reached``; ``when`` is in seconds since 1970."""

    when: float
    pid: int
    process: str
    point: Point
    died: bool


def arm(folder: Path, point: Point, count: int, token: str) -> None:
    """Kill the process that is the first to reach ``point`` ``count`` times; use each ``token`` only once."""
    partial = folder / f".{point}"
    partial.write_text(f"{count} {token}")
    partial.replace(folder / point)


def disarm(folder: Path, point: Point) -> bool:
    """Disarm ``point``; False if a process has died there already, or it was never armed."""
    try:
        (folder / point).unlink()
    except FileNotFoundError:
        return False
    return True


def recorded(folder: Path) -> list[Reached]:
    """The lines of ``reached``, in order."""
    try:
        lines = (folder / "reached").read_text().splitlines()
    except FileNotFoundError:
        return []
    found = []
    for line in lines:
        when, pid, process, point, *died = line.split()
        found.append(Reached(float(when), int(pid), process, Point(point), bool(died)))
    return found
