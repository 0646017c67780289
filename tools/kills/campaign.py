"""Kills one home's processes until there were enough, lets its tasks finish, and returns what happened.

Half of the kills come at random moments, half at named points: a point is armed, and whichever process reaches it dies.
Points that are reached only when a task begins are armed before a random kill.
"""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Collection
from dataclasses import dataclass

from marlaas.engine.faults import Point, arm, disarm

from .lab import PROCESSES, Lab
from .tally import Kill
from .tasks import wave

LIVELY = 3
"""With fewer unfinished tasks than this, the next wave is submitted."""
MEAN_PAUSE = 0.5
"""Seconds between two random kills, exponentially distributed."""
PATIENCE = 8.0
"""Seconds in which an armed point has to be reached."""
FINISH_SECONDS = 600.0
POLL = 0.02
WITH_RESTART = (Point.RECOVER_READY, Point.RECOVER_VOIDED, Point.RECOVER_DONE)
"""Reached only when a task begins: a kill has to come before."""


@dataclass
class Points:
    """Which point is next: of those that a home can reach the one that was tried least, over all homes."""

    tried: Counter[Point]
    reachable: Collection[Point]
    rng: random.Random

    def draw(self) -> Point:
        """One of the points tried least; it counts as tried even where nothing reaches it in time."""
        least = min(self.tried[point] for point in self.reachable)
        drawn = self.rng.choice([point for point in self.reachable if self.tried[point] == least])
        self.tried[drawn] += 1
        return drawn


def kill_many(lab: Lab, kills: int, points: Points, rng: random.Random, say: Callable[[str], None]) -> list[Kill]:
    """Kill until ``kills`` have died. Raises ``RuntimeError`` for a task that fails or pauses on the way."""
    found: list[Kill] = []
    waves = 1
    lab.submit(wave(waves))
    while len(found) < kills:
        rows = lab.look()
        for row in rows:
            if row.state in ("failed", "cancelled") or (row.state == "paused" and "Workers died" not in row.reason):
                raise RuntimeError(f"After {len(found)} kills task {row.id} is {row.state}: {row.reason}")
        if sum(row.unfinished for row in rows) < LIVELY:
            waves += 1
            lab.submit(wave(waves))
        found += _at_random(lab, rng) if len(found) % 2 == 0 else _at_a_point(lab, points, rng)
        lab.start()
        if len(found) % 20 == 0:
            say(f"{len(found)} of {kills} kills")
    return found


def _at_random(lab: Lab, rng: random.Random) -> list[Kill]:
    time.sleep(rng.expovariate(1 / MEAN_PAUSE))  # the moment is the experiment
    process = rng.choice(list(PROCESSES))
    lab.look()
    return [Kill(process, None)] if lab.kill(process) else []


def _at_a_point(lab: Lab, points: Points, rng: random.Random) -> list[Kill]:
    point = points.draw()
    found: list[Kill] = []
    arm(lab.folder, point, rng.randint(1, 3), f"{rng.random()}")
    if point in WITH_RESTART:
        process = rng.choice(("engine", "training"))
        found += [Kill(process, None)] if lab.kill(process) else []
        lab.start()
    deadline = time.monotonic() + PATIENCE
    while (lab.folder / point).exists() and time.monotonic() < deadline:
        time.sleep(POLL)
    if not disarm(lab.folder, point):
        time.sleep(POLL)  # the process that removes the file dies a moment later
        found.append(Kill("", point))
    return found


def finish(lab: Lab) -> None:
    """Let every task end. Raises ``RuntimeError`` for one that ends otherwise than done, or not in time."""
    for point in Point:
        disarm(lab.folder, point)
    deadline = time.monotonic() + FINISH_SECONDS
    while time.monotonic() < deadline:
        lab.start()
        rows = lab.look()
        if not any(row.unfinished for row in rows):
            break
        time.sleep(0.2)
    for row in lab.rows():
        if row.state != "done":
            raise RuntimeError(f"Task {row.id} is {row.state} in the end: {row.reason}")
