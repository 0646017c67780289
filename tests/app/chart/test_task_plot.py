"""From rows of the store to what a chart shows, and the words about one of its points."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given, strategies as st

from marlaas.app.chart.plot import MOST_CURVES
from marlaas.app.chart.task_plot import Look, inspected, kept_places, moved, plot
from marlaas.app.lists.queue_lines import Learner
from marlaas.app.questions.views import LearningCurve, TaskAnswer
from marlaas.engine.store.queries.learning import Change, History, Track
from marlaas.engine.store.rows import EvalRow


def track(first: int, *values: float) -> Track:
    return Track(array("q", range(first, first + len(values))), array("d", values))


def evaluation(step: int, score: float, version: str) -> EvalRow:
    return EvalRow(step, "e", score, 0.05, 64, 0.1, {}, prompts=64, series=version)


def answer(metric: str = "reward", **tracks: Track) -> TaskAnswer:
    evals = (evaluation(0, 0.1, "old"), evaluation(2, 0.3, "old"), evaluation(2, 0.2, "fresh"))
    history = History(tracks, (Change(1, "old"), Change(3, "[/fresh]\x1b[2J")))
    return TaskAnswer(
        Learner(1), metric, LearningCurve(history, evals), {Learner(7): LearningCurve(History({metric: track(1, 0.9)}))}
    )


def test_a_band_that_began_later_is_aligned() -> None:
    known = answer(reward=track(1, 0.4, 0.5, 0.6), reward_min=track(2, 0.1, 0.2), reward_max=track(2, 0.8, 0.9))
    (curve,) = plot(known, [], Look(weight=0.0)).curves
    assert math.isnan(curve.low[0]) and list(curve.low[1:]) == [0.1, 0.2] and list(curve.high[1:]) == [0.8, 0.9]
    gappy = answer(reward=track(1, 0.4, 0.5, 0.6), reward_min=track(1, 0.1, 0.2), reward_max=track(1, 0.8, 0.9))
    assert plot(gappy, [], Look()).curves[0].low == (), "an edge that has other steps is no edge"


def test_a_curve_is_smoothed_with_its_band() -> None:
    known = answer(reward=track(1, 0, 1), reward_min=track(1, 0, 0.5), reward_max=track(1, 0.5, 1))
    (curve,) = plot(known, [], Look(weight=0.5)).curves
    assert list(curve.values) == pytest.approx([0, 2 / 3]) and list(curve.raw) == [0, 1]
    assert list(curve.low) == pytest.approx([0, 1 / 3]) and list(curve.high) == pytest.approx([0.5, 5 / 6])
    (plain,) = plot(known, [], Look(weight=0.0)).curves
    assert list(plain.values) == [0, 1] and not plain.raw
    (scores,) = plot(answer("held-out"), [], Look(weight=0.9)).curves
    assert list(scores.values) == [0.2] and not scores.raw, "a score is a mean already"


def test_points_say_whether_they_compare_and_marks_are_letters() -> None:
    drawn = plot(answer(reward=track(1, 0.4, 0.5)), [], Look())
    points = [(point.step, point.score, point.earlier) for point in drawn.points]
    assert points == [(0, 0.1, True), (2, 0.3, True), (2, 0.2, False)], "what compares covers what does not"
    assert [(mark.step, mark.label) for mark in drawn.marks] == [(3, "fresh2")]
    assert not plot(answer("loss", loss=track(1, 0.4)), [], Look()).points, "scores are no losses"


def test_held_out_scores_of_the_newest_series_are_a_curve() -> None:
    (curve,) = plot(answer("held-out"), [], Look()).curves
    assert (list(curve.steps), list(curve.values)) == ([2], [0.2])


def test_a_point_is_said_exactly() -> None:
    known = answer(reward=track(1, 0.4, 0.5123456, 0.6), reward_min=track(1, 0, 0.25, 0), reward_max=track(1, 1, 1, 1))
    assert inspected(known, 2, Look(places=(Learner(7),))) == [
        "step 2",
        "reward 0.512346",
        "0.25 to 1",
        "task 7: -",
        "held-out 0.30 ± 0.05 at 2",
        "env old",
    ]
    assert inspected(known, 3, Look())[-1] == "env [/fresh]"


def named(tasks: tuple[int | None, ...]) -> tuple[Learner | None, ...]:
    return tuple(None if task is None else Learner(task) for task in tasks)


@pytest.mark.parametrize(
    ("before", "chosen", "after"),
    [
        ((), (), (None, None, None)),
        ((), (4, 5), (4, 5, None)),
        ((4, 5, 6), (6, 4), (4, None, 6)),
        ((4, None, 6), (6, 4, 9), (4, 9, 6)),
        ((4, 5, 6), (7, 8, 9), (7, 8, 9)),
    ],
)
def test_who_stays_keeps_the_place(
    before: tuple[int | None, ...], chosen: tuple[int, ...], after: tuple[int | None, ...]
) -> None:
    assert kept_places(named(before), [Learner(task) for task in chosen]) == named(after)
    assert len(after) == MOST_CURVES - 1


def test_the_cursor_moves_over_points() -> None:
    points = track(1, *[0.0] * 100)
    assert moved(Track(), None, 1, 1.0) is None and moved(points, None, -1, 1.0) == 100
    assert moved(points, 100, -1, 10.0) == 90 and moved(points, 90, 1, 1.0) == 91
    assert moved(points, 100, 1, 10.0) == 100 and moved(points, 3, -1, 10.0) == 1
    sparse = Track(array("q", [1, 50, 99]), array("d", [0, 0, 0]))
    assert moved(sparse, 50, 1, 2.0) == 99, "over a gap that is wider than the move"


@given(st.sets(st.integers(1, 10_000), min_size=1), st.integers(0, 10_000), st.sampled_from([-1, 1]), st.floats(0, 99))
def test_the_cursor_always_arrives(steps: set[int], cursor: int, by: int, apart: float) -> None:
    points = Track(array("q", sorted(steps)), array("d", [0.0] * len(steps)))
    there = moved(points, cursor, by, apart)
    assert there in steps
    if cursor in steps and there != cursor:
        assert (there > cursor) == (by > 0)
