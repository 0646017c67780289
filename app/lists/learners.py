"""The learners of a home: each task, or each policy of a task that trains several. Pure.

``learners`` gives each with the row of its task as that policy sees it.
"""

from __future__ import annotations

from dataclasses import dataclass

from marlaas.engine.store import TaskRow


@dataclass(frozen=True)
class Learner:
    """A task, or one of its policies."""

    task: int
    policy: str = ""
    """Empty where the task file names no policies."""

    @property
    def words(self) -> str:
        """The learner in words, for the middle of a sentence."""
        return f"task {self.task}" + (f", {self.policy}" if self.policy else "")


def learners(task: TaskRow) -> dict[Learner, TaskRow]:
    """The learners of a task, in the order of its file, each with the task's row as it sees it."""
    own = {Learner(task.id, policy.name): task.seen_by(policy) for policy in task.policies if policy.trained}
    return own or {Learner(task.id): task}


def learner(task: TaskRow, policy: str) -> Learner:
    """The task's learner of that name; for any other name its first."""
    wanted = Learner(task.id, policy)
    known = learners(task)
    return wanted if wanted in known else next(iter(known))
