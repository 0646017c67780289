"""A lone task under slow environments, reckoned: which order of groups costs what, on virtual time.

Numbers flow in, a ``Reckoned`` flows out; the same seed gives the same. Groups begin by the engine's own rules
(``admission``), one of their members after the other; sampling takes no time, a step takes ``compute``. In *order of
numbers* a step waits for its own groups. In *order of arrival* it takes the first groups that are complete; whatever a
step leaves too old is given up and begins again.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass, field
from random import Random
from typing import Literal

from marlaas.engine.train.admission import has_room, may_begin

Order = Literal["number", "arrival"]


@dataclass(frozen=True)
class Setting:
    """How a task is trained, and how long its episodes and steps take in units of the mean latency."""

    sigma: float
    """Deviation of the logarithm of an episode's latency, whose mean is 1; 0: constant."""
    staleness: int = 2
    redundant: int = 0
    order: Order = "number"
    groups: int = 4
    """Of one step."""
    size: int = 8
    compute: float = 0.3
    """What a step takes of the trainer and the sampler."""
    alpha: float = 0.0
    """Above 1: the latency has a Pareto tail of this exponent instead, and the same mean."""


@dataclass(frozen=True)
class Reckoned:
    """What came of it."""

    step: float
    """Mean time of a step."""
    given_up: float
    """Share of the groups begun that were given up for being too old."""
    age: float
    """Mean age of the trained groups in versions."""
    taken: float
    """Mean latency of the episodes that were trained on: 1 if they are as slow as all."""


@dataclass
class _Group:
    number: int
    version: int
    left: int
    """Members that are still to end before it closes."""
    latencies: list[float] = field(default_factory=list)
    """Of the members that count."""
    running: int = 0


class _Task:
    """The task at one moment."""

    def __init__(self, setting: Setting, seed: int) -> None:
        self.setting = setting
        self.draw = Random(seed)
        self.now = 0.0
        self.version = self.begun = self.given_up = self.members = 0
        self.open: dict[int, _Group] = {}
        self.complete: dict[int, _Group] = {}
        self.events: list[tuple[float, int, int, float]] = []
        """When, a number that decides among equals, the group (-1: a step ends), the latency."""
        self.count = 0
        self.stepping = False
        self.ages: list[int] = []
        self.latencies: list[float] = []

    def latency(self) -> float:
        sigma, alpha = self.setting.sigma, self.setting.alpha
        if alpha:
            return self.draw.paretovariate(alpha) * (alpha - 1) / alpha
        return self.draw.lognormvariate(-(sigma**2) / 2, sigma) if sigma else 1.0

    def push(self, after: float, group: int, latency: float = 0.0) -> None:
        self.count += 1
        heapq.heappush(self.events, (self.now + after, self.count, group, latency))

    def admit(self) -> None:
        s = self.setting
        while has_room(self.members):
            if s.order == "number":
                if not may_begin(self.begun, self.version, s.groups, s.staleness):
                    return
            elif len(self.open) + len(self.complete) + s.groups * self.stepping >= (s.staleness + 1) * s.groups:
                return
            group = _Group(self.begun, self.version, s.size, running=s.size + s.redundant)
            self.open[group.number] = group
            self.begun += 1
            self.members += group.running
            for _ in range(group.running):
                latency = self.latency()
                self.push(latency, group.number, latency)

    def ended(self, number: int, latency: float) -> None:
        """A member has ended; of a group that is closed or given up this is the echo of one that was cancelled."""
        group = self.open.get(number)
        if group is None:
            return
        self.members -= 1
        group.running -= 1
        group.left -= 1
        group.latencies.append(latency)
        if not group.left:
            self.members -= group.running
            self.complete[number] = self.open.pop(number)

    def step(self) -> None:
        """Begin a step where its groups are there."""
        s = self.setting
        wanted = list(range(self.version * s.groups, (self.version + 1) * s.groups))
        if s.order == "arrival":
            wanted = sorted(self.complete, key=lambda number: self.complete[number].version)[: s.groups]
        if self.stepping or len(wanted) < s.groups or any(number not in self.complete for number in wanted):
            return
        for group in map(self.complete.pop, wanted):
            self.ages.append(self.version - group.version)
            self.latencies += group.latencies
        self.stepping = True
        self.push(s.compute, -1)

    def stepped(self) -> None:
        self.stepping = False
        self.version += 1
        if self.setting.order == "arrival":
            oldest = self.version - self.setting.staleness
            for number in [number for number, group in self.open.items() if group.version < oldest]:
                self.members -= self.open.pop(number).running
                self.given_up += 1
            for number in [number for number, group in self.complete.items() if group.version < oldest]:
                del self.complete[number]
                self.given_up += 1


def reckon(setting: Setting, steps: int = 400, seed: int = 0) -> Reckoned:
    """Train for so many steps; the first tenth, in which all begins, does not count."""
    task, began, first = _Task(setting, seed), 0.0, steps // 10
    while task.version < steps:
        task.admit()
        task.step()
        task.now, _, group, latency = heapq.heappop(task.events)
        if group >= 0:
            task.ended(group, latency)
        else:
            task.stepped()
            began = task.now if task.version == first else began
    assert max(task.ages) <= setting.staleness
    return Reckoned(
        (task.now - began) / (steps - first),
        task.given_up / task.begun,
        sum(task.ages) / len(task.ages),
        math.fsum(task.latencies) / len(task.latencies),
    )
