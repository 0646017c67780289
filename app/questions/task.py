"""What the view of one task shows beyond its row."""

from __future__ import annotations

from dataclasses import dataclass

from marlaas.engine.store.reader import Reader
from marlaas.engine.store.rows import EvalRow, StepRow, TrajectoryRow

TRAJECTORIES = 50
"""How many of the newest trajectories are kept at hand."""


@dataclass(frozen=True)
class TaskAnswer:
    """A task's steps, evaluations and newest trajectories."""

    steps: tuple[StepRow, ...] = ()
    evals: tuple[EvalRow, ...] = ()
    trajectories: tuple[TrajectoryRow, ...] = ()
    """Newest first."""


@dataclass(frozen=True)
class TaskQuestion:
    """Asks for one task."""

    task: int

    def read(self, reader: Reader, before: TaskAnswer | None) -> TaskAnswer:
        """Only steps that were not there before, and the last one again: its metrics may have come later."""
        row = reader.task(self.task)
        known: tuple[StepRow, ...] = ()
        if row and before:
            known = tuple(step for step in before.steps if step.step < row.step)[:-1]
        newer = reader.steps(self.task, after=known[-1].step if known else 0)
        return TaskAnswer(
            (*known, *newer),
            tuple(reader.evals(self.task)),
            tuple(reader.trajectories(self.task, limit=TRAJECTORIES)),
        )
