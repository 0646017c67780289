"""Which tasks may run, and when a failed one is tried again."""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from enum import Enum, auto

from ...store.rows import NO_REASON, Reason, ReasonCode, Tenant
from ...store.tasks import Needed, QueuedTask

PAUSES = (10.0, 60.0, 300.0, 900.0, 3600.0)
"""Seconds before the first try, the second, …; the last for all later ones."""


def in_words(attempt: int, retries: int, reason: str) -> str:
    """The next try and its reason."""
    return f"try {attempt} of {retries}: {reason}"


# Slots go to the tenant with the fewest running tasks, then tokens of the day, for its weight; within a tenant by
# priority, then by number. Running tasks are not preempted, except for a tenant without tokens of the day.

EXACT = 20
"""Exact counts would rewrite every row of a longer queue at every start."""


class Act(Enum):
    """A decision on a task."""

    START = auto()
    WAIT = auto()
    FAIL = auto()
    HOLD = auto()


@dataclass(frozen=True)
class Verdict:
    """With the reason."""

    act: Act
    reason: Reason = NO_REASON


@dataclass(frozen=True)
class Situation:
    """What decides besides the queue."""

    now: float
    slots: int
    running: Set[int]
    blocked: Mapping[int, Reason]
    """Why tasks could not run at their turn: no environment, or a full disk."""
    tried: Set[int]
    """Blocked tasks tried just now; others may be tried if a slot is free."""
    tenant: Callable[[str], Tenant]
    used: Mapping[str, int]
    yielding: str = ""

    def spent(self, tenant: str) -> bool:
        quota = self.tenant(tenant).tokens_per_day
        return 0 < quota <= self.used.get(tenant, 0)


def decide(tasks: Sequence[QueuedTask], situation: Situation) -> dict[int, Verdict]:
    """For unfinished tasks, except paused ones and those that keep running.

    ``tasks``: by priority, then by number. Takes O(n log n).
    """
    verdicts: dict[int, Verdict] = {}
    ready: defaultdict[str, deque[QueuedTask]] = defaultdict(deque)
    for task in sorted(tasks, key=lambda task: task.state != "running"):  # interrupted tasks come first
        if task.id in situation.running:
            if situation.yielding:
                verdicts[task.id] = Verdict(Act.HOLD, Reason(ReasonCode.YIELDED, situation.yielding))
            elif situation.spent(task.tenant):
                verdicts[task.id] = Verdict(Act.HOLD, _spent(task.tenant, situation))
        elif task.state != "paused":
            verdict = _own_obstacle(task, situation)
            if verdict is None:
                ready[task.tenant].append(task)
            else:
                verdicts[task.id] = verdict
    running = Counter(task.tenant for task in tasks if task.id in situation.running)
    return verdicts | _share_out(ready, running, situation)


def _own_obstacle(task: QueuedTask, situation: Situation) -> Verdict | None:
    if task.needs:
        return _dependency(task)
    if situation.yielding:
        return Verdict(Act.WAIT, Reason(ReasonCode.YIELDED, situation.yielding))
    if task.due is not None and task.due > situation.now:
        words = f"retrying in {_coarse(task.due - situation.now)}, {task.cause}"
        return Verdict(Act.WAIT, Reason(ReasonCode.RETRY, words))
    if task.id in situation.tried:
        return Verdict(Act.WAIT, situation.blocked[task.id])
    if situation.spent(task.tenant):
        return Verdict(Act.WAIT, _spent(task.tenant, situation))
    return None


def _share_out(
    ready: Mapping[str, deque[QueuedTask]], running: Counter[str], situation: Situation
) -> dict[int, Verdict]:
    verdicts: dict[int, Verdict] = {}
    planned, ahead = running.copy(), 0
    free = situation.slots - len(situation.running)

    def turn(name: str) -> tuple[bool, float, float, int, str]:
        weight, head = situation.tenant(name).weight, ready[name][0]
        return head.state != "running", planned[name] / weight, situation.used.get(name, 0) / weight, head.id, name

    turns = [turn(name) for name in ready]
    heapq.heapify(turns)
    while turns:
        name = heapq.heappop(turns)[-1]
        quota, waiting = situation.tenant(name).tasks, ready[name]
        if quota and planned[name] >= quota:
            verdicts |= _over_quota(name, quota, running[name], planned[name] - running[name], waiting)
            continue
        task = waiting.popleft()
        if free > 0:
            verdicts[task.id] = Verdict(Act.START)
            free, running[name], planned[name] = free - 1, running[name] + 1, planned[name] + 1
        elif task.id in situation.blocked:
            verdicts[task.id] = Verdict(Act.WAIT, situation.blocked[task.id])
        else:
            verdicts[task.id] = Verdict(
                Act.WAIT, Reason(ReasonCode.SLOTS, f"{_busy(situation.slots)}; {_ahead(ahead)}")
            )
            ahead, planned[name] = ahead + 1, planned[name] + 1
        if waiting:
            heapq.heappush(turns, turn(name))
    return verdicts


def _over_quota(name: str, quota: int, runs: int, planned: int, waiting: Sequence[QueuedTask]) -> dict[int, Verdict]:
    verdicts = {}
    for place, task in enumerate(waiting, planned):
        reason = f"tenant {name} runs {runs} of {quota} {_tasks(quota)} at the same time"
        words = f"{reason}; {_ahead(place, ' of its')}" if place else reason
        verdicts[task.id] = Verdict(Act.WAIT, Reason(ReasonCode.QUOTA, words))
    return verdicts


def _dependency(task: QueuedTask) -> Verdict:
    for other in task.needs:
        if not other.state:
            return Verdict(Act.FAIL, Reason(ReasonCode.FAILED, f"It depends on task {other.id}, which does not exist."))
        if other.state in ("failed", "cancelled"):
            ended = "failed" if other.state == "failed" else "was cancelled"
            remedy = f"`marlaas retry {other.id} {task.id}` runs both."
            words = f"It depends on task {other.id} ({other.name}), which {ended}. {remedy}"
            return Verdict(Act.FAIL, Reason(ReasonCode.FAILED, words))
    more = f", and for {_about(len(task.needs) - 1)} more" if len(task.needs) > 1 else ""
    return Verdict(Act.WAIT, Reason(ReasonCode.DEPENDS, f"waiting for {_named(task.needs[0])}{more}"))


def _named(other: Needed) -> str:
    step = f", step {other.step} of {other.steps}" if other.state == "running" else ""
    return f"task {other.id} ({other.name}), which is {other.state}{step}"


def _spent(name: str, situation: Situation) -> Reason:
    quota = situation.tenant(name).tokens_per_day
    return Reason(ReasonCode.QUOTA, f"tenant {name} has used its {quota:,} tokens of the day; goes on at 00:00 UTC")


def _busy(slots: int) -> str:
    return "the only slot is busy" if slots == 1 else f"{slots} of {slots} slots are busy"


def _ahead(count: int, whose: str = "") -> str:
    if not count:
        return "it is next"
    return f"{_about(count)}{whose} {'tasks' if whose else _tasks(count)} ahead"


def _tasks(count: int) -> str:
    return "task" if count == 1 else "tasks"


def _about(count: int) -> str:
    return str(count) if count <= EXACT else f"more than {EXACT}"


def _coarse(seconds: float) -> str:
    return f"{math.ceil(seconds / 10) * 10} s" if seconds <= 60 else f"{math.ceil(seconds / 60)} min"
