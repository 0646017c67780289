"""What the view of rollouts asks of the feed: the steps of a task. The lists read everything below them."""

from __future__ import annotations

from dataclasses import dataclass

from marlaas.engine.store import StepSummary

from ..lists.learners import Learner, learners
from ..reading.home_reader import HomeReader

LATE = 20
"""Steps after which a step is complete: a version is evaluated beside the steps that follow it."""


@dataclass(frozen=True)
class RolloutsAnswer:
    """A task's steps and evaluations."""

    steps: tuple[StepSummary, ...] = ()
    """Oldest first; groups that no step has consumed come last."""


@dataclass(frozen=True)
class RolloutsQuestion:
    """Asks for the steps of one task, or of one of its policies."""

    learner: Learner

    def read(self, reader: HomeReader, before: RolloutsAnswer | None) -> RolloutsAnswer:
        """Read the last steps that were known and newer ones; where steps were lost, all of them."""
        made = [step.step for step in before.steps if step.step is not None] if before else []
        row = reader.task(self.learner.task)
        since = max(0, max(made, default=0) - LATE)
        if row is None or learners(row).get(self.learner, row).step < since:
            since = 0
        newer = reader.rollout_steps(self.learner.task, since, self.learner.policy or None)
        known = before.steps if before else ()
        return RolloutsAnswer((*(step for step in known if step.step is not None and step.step < since), *newer))
