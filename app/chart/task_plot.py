"""The plots of a task."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from marlaas.engine.store.queries.learning import History, Track
from marlaas.engine.store.rows import TaskRow

from ..lists.lines import Learner
from ..questions import LearningAnswer, LearningCurve
from ..text.format import line, number
from ..text.metrics import BANDS, HELD_OUT, REWARD, exact, held_out_on, words
from ..text.scores import scored_at
from ..text.tasks import newest_key
from .draw import MOST_CURVES, WEIGHTS, Curve, Plot, Point, smoothed

_SCORED = (REWARD, HELD_OUT)
"""Metrics shown with held-out points and the constant-answer baseline."""
_POINTS = 512


@dataclass(frozen=True)
class Look:
    """A person's choice of view."""

    logarithmic: bool = False
    weight: float = WEIGHTS[0]
    cursor: int | None = None
    places: tuple[Learner | None, ...] = ()
    """Overlaid tasks and policies, by place."""

    def overlaid(self, answer: LearningAnswer) -> list[tuple[int, Learner]]:
        return [
            (place, each) for place, each in enumerate(self.places, 1) if each is not None and each in answer.others
        ]


def plot(answer: LearningAnswer, tasks: Sequence[TaskRow], look: Look) -> Plot:
    """The plot of the answer's metric; of the first learner also scores, baseline and edits.

    ``tasks``: rows of the learners, for the end of the axis.
    """
    metric, own = answer.metric, answer.own
    shown = [(0, own), *((place, answer.curves[each]) for place, each in look.overlaid(answer))]
    curves = [_curve(learned, metric, place, look.weight) for place, learned in shown]
    curves += [_curve(own, name, place, 0.0) for place, name in parts(answer, look)]
    is_scored = metric in _SCORED
    return Plot(
        curves,
        _points(own) if is_scored else (),
        tasks[0].floor if is_scored and tasks else None,
        [change.step for change in own.history.environments[1:]],
        max((task.steps for task in tasks), default=1),
        look.logarithmic,
        words(metric).unit,
        look.cursor,
    )


def parts(answer: LearningAnswer, look: Look) -> list[tuple[int, str]]:
    """Scores on suites or mixture components next to the held-out score, in the places without overlay."""
    if answer.metric != HELD_OUT or look.overlaid(answer):
        return []
    return list(enumerate([name for name in answer.own.measured_by if name != HELD_OUT][: MOST_CURVES - 1], 1))


def _curve(learned: LearningCurve, metric: str, place: int, weight: float) -> Curve:
    track = learned.track(metric)
    low, high = (_edge(learned.history, name, track) for name in BANDS.get(metric, ("", "")))
    edges = (low, high) if low and high else ((), ())
    curve = Curve(track.steps, track.values, *edges, place=place)
    scores = held_out_on(metric) is not None  # each is a mean over all held-out prompts already
    return curve if scores else _smoothed(curve, weight)


def _smoothed(curve: Curve, weight: float) -> Curve:
    if not weight:
        return curve
    low, high = smoothed(curve.low, weight), smoothed(curve.high, weight)
    return replace(curve, values=smoothed(curve.values, weight), low=low, high=high, raw=curve.values)


def _edge(history: History, name: str, track: Track) -> Sequence[float]:
    """The band's edge at each step, NaN at first steps without one; empty if it does not fit."""
    edge = history.tracks.get(name)
    missing = len(track.steps) - len(edge.steps) if edge else -1
    if edge is None or not edge.steps or missing < 0 or track.steps[missing:] != edge.steps:
        return ()
    return array("d", [math.nan]) * missing + edge.values


def _points(learned: LearningCurve) -> list[Point]:
    """At most twice as many points as any screen has columns; of neighbours the last."""
    newest = newest_key(learned.evals)
    own = [row for row in learned.evals if row.score is not None and not row.suite and row.split == "eval"]
    end = max((row.step for row in own), default=0) + 1
    rows = {(row.step * _POINTS // end, row.series != newest): row for row in own}
    points = [Point(row.step, row.score or 0.0, row.stderr, earlier) for (_, earlier), row in rows.items()]
    return sorted(points, key=lambda point: (point.step, not point.earlier))


def kept_places(before: Sequence[Learner | None], chosen: Sequence[Learner]) -> tuple[Learner | None, ...]:
    """Chosen learners by place: those already shown keep theirs, hence colour and shape."""
    free = [each for each in chosen if each not in before]
    kept = [each if each in chosen else None for each in (*before, *[None] * MOST_CURVES)][: MOST_CURVES - 1]
    return tuple(each if each is not None else (free.pop(0) if free else None) for each in kept)


def moved(track: Track, cursor: int | None, by: int, apart: float) -> int | None:
    """The cursor's next step: at least one further, ``apart`` further if possible."""
    if not track.steps:
        return None
    if cursor is None:
        return track.steps[-1]
    here, there = track.place(cursor) or 0, track.place(round(cursor + by * max(1.0, apart))) or 0
    place = there if there != here else here + by
    return track.steps[min(len(track.steps) - 1, max(0, place))]


def inspected(answer: LearningAnswer, step: int, look: Look) -> list[str]:
    """The facts about a step, most important first."""
    own, metric = answer.own, answer.metric
    edges = [own.history.tracks[name].at(step) for name in BANDS.get(metric, ()) if name in own.history.tracks]
    measured = [row for row in own.evals if row.step <= step and metric in _SCORED]
    newest, version = max(measured, key=lambda row: row.step, default=None), own.history.environment_at(step)
    texts = (
        f"step {step:,}",
        f"{words(metric).title} {exact(own.track(metric).at(step))}",
        f"{number(edges[0])} to {number(edges[1])}" if edges and None not in edges else "",
        *(f"{each.words}: {exact(answer.others[each].track(metric).at(step))}" for _, each in look.overlaid(answer)),
        f"held-out {scored_at(newest.score, newest.basis, newest.step)}" if newest else "",
        f"env {line(version, 8)}" if version else "",
    )
    return list(filter(None, texts))
