"""What the queue shows below its table: how the task under the cursor learns, and what its model wrote last."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from marlaas.engine.store import EvalRow, FirstStep, Track, TrajectoryRow

from ..home.environments.source_lines import Excerpt
from ..lists.learners import Learner
from ..reading.home_reader import HomeReader
from ..words.metrics import REWARD
from .blocking_source import blocking_source
from .learning_curve import LearningCurve, learning_curve


@dataclass(frozen=True)
class PreviewAnswer:
    """Some learners' rewards and scores, and more of the first of them."""

    curves: Mapping[Learner, LearningCurve] = field(default_factory=dict)
    """In the order of the question."""
    samples: Mapping[str, Track] = field(default_factory=dict)
    """Samples of all metrics, where the question asked for them."""
    recent: Mapping[str, float] = field(default_factory=dict)
    """The mean of each metric over the last steps."""
    rollout: TrajectoryRow | None = None
    """Its newest trajectory."""
    versions: Mapping[str, EvalRow | None] = field(default_factory=dict)
    """Of an evaluation: what it measures, with the newest score of each."""
    first: FirstStep | None = None
    """Before the first step: what it waits for."""
    config: Mapping[str, Any] = field(default_factory=dict)
    """Its task's configuration."""
    source: Excerpt | None = None
    """Of a task that is blocked by its environment: the lines of it that are wrong."""


@dataclass(frozen=True)
class PreviewQuestion:
    """Asks for one learner, or for a few whose rewards are compared."""

    learners: tuple[Learner, ...]
    samples: bool = False
    """Whether there is room for other metrics beside the reward."""
    known: PreviewAnswer | None = field(default=None, compare=False, repr=False)
    """An answer to another question, from which curves can be taken over."""
    clock: Callable[[], float] = field(default=time.time, compare=False, repr=False)

    def read(self, reader: HomeReader, before: PreviewAnswer | None) -> PreviewAnswer:
        """Read what the last answer does not have: of a curve its new steps, and a few rows for the rest."""
        known = before or self.known or PreviewAnswer()
        curves = {each: learning_curve(reader, each, REWARD, known.curves.get(each)) for each in self.learners}
        if not self.learners:
            return PreviewAnswer()
        first = self.learners[0]
        task, policy = first.task, first.policy or None
        config = reader.task_config(task)
        return PreviewAnswer(
            curves,
            reader.metric_samples(task, policy=policy) if self.samples else {},
            reader.recent_means(task, policy=policy),
            reader.newest_rollout(task, policy),
            {words: next(reversed(reader.evals(task, words)), None) for words in config.get("versions", ())},
            reader.first_step(task, policy),
            config,
            blocking_source(reader, task, self.clock()),
        )
