"""Who may run: a pure decision over the queue, and the sentence that each waiting task shows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass

from ..store.tasks import QueuedTask


@dataclass(frozen=True)
class Verdict:
    """What is to be done with a task that does not run."""

    start: bool
    reason: str = ""
    """Why it waits."""
    failed: bool = False
    """It can never start; ``reason`` says why."""


def decide(
    tasks: Sequence[QueuedTask], running: Set[int], slots: int, dependencies: Mapping[int, str]
) -> dict[int, Verdict]:
    """A verdict on every submitted or queued task that is not running.

    ``tasks`` come in the order in which they should run, ``dependencies`` gives the states of tasks that others wait
    for. A task that is blocked outside the queue keeps its reason until its run is tried again.
    """
    verdicts: dict[int, Verdict] = {}
    free, ahead = slots - len(running), 0
    for task in tasks:
        if task.id in running or task.state not in ("submitted", "queued", "running"):
            continue
        blocked = _dependency(task, dependencies)
        if blocked:
            verdicts[task.id] = blocked
        elif free > 0:
            verdicts[task.id] = Verdict(True)
            free -= 1
        else:
            verdicts[task.id] = Verdict(False, f"waiting for one of {slots} slots, {ahead} ahead")
            ahead += 1
    return verdicts


def _dependency(task: QueuedTask, states: Mapping[int, str]) -> Verdict | None:
    for other in task.spec.queue.depends_on:
        state = states.get(other)
        if state is None:
            return Verdict(False, f"It depends on task {other}, which does not exist.", failed=True)
        if state in ("failed", "cancelled"):
            return Verdict(False, f"It depends on task {other}, which is {state}.", failed=True)
        if state != "done":
            return Verdict(False, f"waiting for task {other}, which is {state}")
    return None
