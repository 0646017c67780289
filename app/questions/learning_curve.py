"""How one task or policy learned: a metric by step, and its evaluations. What charts and verdicts go by."""

from __future__ import annotations

from dataclasses import dataclass, field

from marlaas.engine.store import EvalRow, History, Track

from ..lists.learners import Learner
from ..reading.home_reader import HomeReader
from ..words.metrics import BANDS, HELD_OUT, HELD_OUT_ON, held_out_on
from ..words.tasks import measured_on, newest_series


@dataclass(frozen=True)
class LearningCurve:
    """One task or policy as a chart shows it."""

    history: History = field(default_factory=History)
    evals: tuple[EvalRow, ...] = ()
    """Evaluations of all series, oldest first."""
    measured: tuple[int, int] = (0, 0)
    """Count of all evaluations and newest id, which tell whether ``evals`` is complete."""

    def track(self, metric: str) -> Track:
        """The values of a metric by step; for the held-out score, those of the newest evaluation series."""
        on = held_out_on(metric)
        if on is None:
            return self.history.tracks.get(metric, Track())
        track = Track()
        scores = {row.step: row.score for row in newest_series(self.evals, on) if row.score is not None}
        track.steps.extend(scores)
        track.values.extend(scores.values())
        return track

    @property
    def measured_by(self) -> list[str]:
        """The metrics that are held-out scores: of the task's own prompts, then of suites and of the split test."""
        others = sorted({measured_on(row) for row in self.evals} - {""})
        return [HELD_OUT, *(f"{HELD_OUT_ON}{on}" for on in others)]


def learning_curve(reader: HomeReader, learner: Learner, metric: str, before: LearningCurve | None) -> LearningCurve:
    """One metric with the edges of its band, and all evaluations; of these only what ``before`` does not have is read.

    Raises ``StoreError``.
    """
    names = () if held_out_on(metric) is not None else (metric, *BANDS.get(metric, ()))
    task, policy = learner.task, learner.policy or None
    now = reader.evals_made(task, policy)
    return LearningCurve(
        reader.history(task, names, before.history if before else None, policy),
        before.evals if before and before.measured == now else tuple(reader.evals(task, policy)),
        now,
    )
