"""The plots of a task."""

from __future__ import annotations

import math
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, replace

from marlaas.engine.store.queries.learning import History, Track
from marlaas.engine.store.rows import TaskRow

from ..lists.lines import Learner
from ..questions import LearningCurve, TaskAnswer
from ..text.format import cells, clip, line, number, pad
from ..text.metrics import BANDS, HELD_OUT, REWARD, exact, held_out_on, words
from ..text.scores import scored_at
from ..text.tasks import newest_key
from .draw import MOST_CURVES, WEIGHTS, Curve, Mark, Plot, Point, Run, smoothed

# Scores of an evaluation's versions as rows on one axis.
#
# ``◆``: score, ``├─┤``: one standard error to either side, ``╌``: constant-answer baseline.

_LEAST = 10
_NAME = 30


@dataclass(frozen=True)
class ScoreRow:
    """A version."""

    name: str
    value: str
    """The score in words, or why there is none."""
    score: float | None = None
    error: float = 0.0
    """Standard error."""


def score_rows(rows: Sequence[ScoreRow], baseline: float | None, width: int, height: int) -> list[list[Run]]:
    """At most ``height`` lines of ``width`` cells: the axis, then versions, best first."""
    names = min(_NAME, max((cells(row.name) for row in rows), default=0))
    values = max((cells(row.value) for row in rows), default=0)
    columns = width - names - values - 4
    if columns < _LEAST or height < 2:
        return []
    known = [row for row in rows if row.score is not None]
    edges = [edge for row in known for edge in ((row.score or 0.0) - row.error, (row.score or 0.0) + row.error)]
    marks = [*edges, *([] if baseline is None else [baseline])]
    low, high = min(0.0, *marks) if marks else 0.0, max(1.0, *marks) if marks else 1.0

    def column(value: float) -> int:
        return round((value - low) / (high - low) * (columns - 1))

    ordered = sorted(rows, key=lambda row: (row.score is None, -(row.score or 0.0)))
    lines = [_axis(low, high, columns, names)]
    for row in ordered[: height - 1]:
        line = [(" ", "")] * columns
        if baseline is not None:
            line[column(baseline)] = ("╌", "baseline")
        if row.score is not None:
            begin, end = column(row.score - row.error), column(row.score + row.error)
            for place in range(begin, end + 1):
                line[place] = ("├" if place == begin else "┤" if place == end else "─", "curve0")
            line[column(row.score)] = ("◆", "curve0")
        name = pad(clip(row.name, names), names)
        lines.append([(f"{name} ", ""), ("│", "axis"), *line, ("│ ", "axis"), (pad(row.value, values, right=True), "")])
    return lines


def _axis(low: float, high: float, columns: int, names: int) -> list[Run]:
    left, right = f"{low:.2f}", f"{high:.2f}"
    between = max(1, columns + 2 - len(left) - len(right))
    return [(" " * (names + 1), ""), (f"{left}{' ' * between}{right}", "axis")]


_SCORED = (REWARD, HELD_OUT)
"""Metrics shown with held-out points and the constant-answer baseline."""
_LABEL = 6
_POINTS = 512


@dataclass(frozen=True)
class Look:
    """A person's choice of view."""

    logarithmic: bool = False
    weight: float = WEIGHTS[0]
    cursor: int | None = None
    places: tuple[Learner | None, ...] = ()
    """Overlaid tasks and policies, by place."""

    def overlaid(self, answer: TaskAnswer) -> list[tuple[int, Learner]]:
        return [
            (place, each) for place, each in enumerate(self.places, 1) if each is not None and each in answer.others
        ]


def plot(answer: TaskAnswer, tasks: Sequence[TaskRow], look: Look) -> Plot:
    """The plot of the answer's metric. ``tasks``: rows of the learners, the answer's own first."""
    overlaid = [(place, answer.others[each]) for place, each in look.overlaid(answer)]
    shown = plot_of(answer.metric, [(0, answer.own), *overlaid], tasks, look)
    beside = [_curve(answer.own, name, place, 0.0) for place, name in parts(answer, look)]
    return replace(shown, curves=[*shown.curves, *beside])


def parts(answer: TaskAnswer, look: Look) -> list[tuple[int, str]]:
    """Scores on suites or mixture components next to the held-out score, in the places without overlay."""
    if answer.metric != HELD_OUT or look.overlaid(answer):
        return []
    return list(enumerate([name for name in answer.own.measured_by if name != HELD_OUT][: MOST_CURVES - 1], 1))


def plot_of(
    metric: str,
    curves: Sequence[tuple[int, LearningCurve]],
    tasks: Sequence[TaskRow],
    look: Look = Look(),
) -> Plot:
    """The plot of a metric over some learners by place; the first also with scores, baseline and edits.

    ``tasks``: their rows in the same order, for the end of the axis.
    """
    scored, own = metric in _SCORED, curves[0][1]
    return Plot(
        [_curve(learned, metric, place, look.weight) for place, learned in curves],
        _points(own) if scored else (),
        tasks[0].floor if scored and tasks else None,
        [Mark(change.step, _label(change.environment_version)) for change in own.history.environments[1:]],
        max((task.steps for task in tasks), default=1),
        look.logarithmic,
        words(metric).unit,
        look.cursor,
    )


def sample_plot(metric: str, track: Track, steps: int, weight: float) -> Plot:
    """The plot of a metric known at some steps only; ``steps``: number planned."""
    curve = Curve(track.steps, track.values)
    if held_out_on(metric) is None:
        curve = _smoothed(curve, weight)
    return Plot([curve], end=steps, unit=words(metric).unit, band=False)


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


def _label(version: str) -> str:
    return "".join(letter for letter in version if letter.isascii() and letter.isalnum())[:_LABEL] or "?"


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


def inspected(answer: TaskAnswer, step: int, look: Look) -> list[str]:
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
        f"held-out {scored_at(newest.score, newest, newest.step)}" if newest else "",
        f"env {line(version, 8)}" if version else "",
    )
    return list(filter(None, texts))
