"""What the view of one task shows beyond its row: one metric whole, the others in samples, and details around them."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from marlaas.engine.store import EvalRow, FirstStep, Track, TrajectoryRow

from ..home.environments.source_lines import Excerpt
from ..home.results.comparing import Scored, scored
from ..lists.learners import Learner
from ..reading.home_reader import HomeReader
from ..words.metrics import REWARD
from .blocking_source import blocking_source
from .learning_curve import LearningCurve, learning_curve

AGES_OVER = 50
"""Steps over which staleness is counted."""


@dataclass(frozen=True)
class TaskAnswer:
    """A task in detail, as one of its policies sees it."""

    learner: Learner
    metric: str
    own: LearningCurve = field(default_factory=LearningCurve)
    others: Mapping[Learner, LearningCurve] = field(default_factory=dict)
    """The same metric of the tasks and policies laid over it."""
    samples: Mapping[str, Track] = field(default_factory=dict)
    """Samples of all metrics, at some steps."""
    recent: Mapping[str, float] = field(default_factory=dict)
    """The mean of each metric over the last steps."""
    ages: Mapping[int, int] = field(default_factory=dict)
    """Groups of the last steps by their staleness in versions."""
    configs: Mapping[int, Mapping[str, Any]] = field(default_factory=dict)
    """Configurations of the task and of the others, by task."""
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """Defaults of its environment's parameters."""
    trajectories: tuple[TrajectoryRow, ...] = ()
    """Trajectories of the newest group's play, of all who spoke in it, newest first."""
    scores: Mapping[Learner, Scored] = field(default_factory=dict)
    """By which held-out scores it and those laid over it are compared, its own first; empty where nothing is."""
    versions: Mapping[str, EvalRow | None] = field(default_factory=dict)
    """Of an evaluation: what it measures, with the newest score of each."""
    first: FirstStep | None = None
    """Before the first step: what it waits for."""
    source: Excerpt | None = None
    """Where it is blocked by its environment before that: the lines of it that are wrong."""

    @property
    def task(self) -> int:
        """The number of the task."""
        return self.learner.task


@dataclass(frozen=True)
class TaskQuestion:
    """Asks for one task or policy, one metric, and the same metric of up to three others."""

    learner: Learner
    metric: str = REWARD
    others: tuple[Learner, ...] = ()
    known: TaskAnswer | None = field(default=None, compare=False, repr=False)
    """An answer to another question, from which parts can be taken over."""
    clock: Callable[[], float] = field(default=time.time, compare=False, repr=False)

    def read(self, reader: HomeReader, before: TaskAnswer | None) -> TaskAnswer:
        """Read what the last answer does not have."""
        known = before or self.known
        curves = {**known.others, known.learner: known.own} if known else {}
        everybody = (self.learner, *self.others)
        wanted = {each: learning_curve(reader, each, self.metric, curves.get(each)) for each in everybody}
        own = wanted.pop(self.learner)
        task, policy = self.learner.task, self.learner.policy or None
        configs = {each.task: reader.task_config(each.task) for each in everybody}
        return TaskAnswer(
            self.learner,
            self.metric,
            own,
            wanted,
            reader.metric_samples(task, policy=policy),
            reader.recent_means(task, policy=policy),
            reader.group_ages(task, own.history.last[0] - AGES_OVER, policy),
            configs,
            _parameters(reader, str(configs[task].get("environment", ""))),
            tuple(reader.newest_group(task, policy)),
            {each: scored(reader, each.words, each.task, each.policy) for each in everybody if self.others},
            {words: next(reversed(reader.evals(task, words)), None) for words in configs[task].get("versions", ())},
            reader.first_step(task, policy),
            blocking_source(reader, task, self.clock()),
        )


def _parameters(reader: HomeReader, environment: str) -> dict[str, Any]:
    rows = (row for row in reader.environments() if row.name == environment)
    return {str(one.get("name")): one.get("default") for row in rows for one in row.parameters}
