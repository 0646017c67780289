"""Scales, rows of scores, plots of a task."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given, strategies as st

from marlaas.app.chart.plot import MOST_CURVES, Scale, linear, logarithmic, short
from marlaas.app.chart.task_plot import Look, ScoreRow, inspected, kept_places, moved, plot, score_rows
from marlaas.app.lists.lines import Learner
from marlaas.app.questions import LearningCurve, TaskAnswer
from marlaas.app.text.format import cells
from marlaas.engine.store.queries.learning import Change, History, Track
from marlaas.engine.store.rows import EvalRow

# Axes: ticks at round numbers, labels that tell them apart.


def labels(scale: Scale) -> list[str]:
    return [tick.label for tick in scale.ticks]


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (0.0, 1.0, 6, ["0.0", "0.2", "0.4", "0.6", "0.8", "1.0"]),
        (0.0, 1.0, 2, ["0.0", "0.5", "1.0"]),
        (-0.0132, 0.0251, 5, ["-0.02", "0.00", "0.02", "0.04"]),
        (1e-5, 6e-5, 4, ["0", "2e-5", "4e-5", "6e-5"]),
        (0.0, 1e6, 3, ["0", "0.5M", "1.0M"]),
        (12_000, 14_000, 3, ["12k", "13k", "14k"]),
        (1e6, 1e6 + 4, 3, ["1.000000M", "1.000002M", "1.000004M"]),
        (0.5, 0.5, 3, ["0.45", "0.50", "0.55"]),
        (0.0, 0.0, 3, ["-1", "0", "1"]),
        (-3e20, 3e20, 3, ["-5e20", "0", "5e20"]),
    ],
)
def test_ticks_are_round(low: float, high: float, most: int, expected: list[str]) -> None:
    assert labels(linear(low, high, most)) == expected


@pytest.mark.parametrize(
    ("low", "high", "most", "expected"),
    [
        (1e-5, 1.0, 6, ["1e-5", "1e-4", "0.001", "0.01", "0.1", "1"]),
        (1e-6, 1e3, 4, ["1e-6", "0.001", "1", "1000"]),
        (0.3, 0.9, 5, ["0.2", "0.5", "1"]),
        (1.0, 1.0, 5, ["1", "10"]),
        (3e-5, 4e6, 2, ["1e-5", "1e7"]),
    ],
)
def test_powers(low: float, high: float, most: int, expected: list[str]) -> None:
    assert labels(logarithmic(low, high, most)) == expected


@given(st.floats(-1e305, 1e305), st.floats(-1e305, 1e305), st.integers(0, 40))
def test_any_range_is_covered(one: float, other: float, most: int) -> None:
    low, high = sorted((one, other))
    for scale in (linear(low, high, most), logarithmic(max(low, 1e-300), max(high, 1e-300), most)):
        assert 2 <= len(scale.ticks) <= max(3, most)
        assert scale.place(low) >= 0.0 and scale.place(high) <= 1.0 and scale.place(low) <= scale.place(high)
        values = [tick.value for tick in scale.ticks]
        assert values == sorted(set(values)) and len(set(labels(scale))) == len(values)
        assert all(len(label) <= 12 for label in labels(scale))


@pytest.mark.parametrize(
    ("value", "expected"), [(0, "0"), (7.5, "7.5"), (1234, "1234"), (25_000, "25k"), (1e6, "1M"), (123_456, "123.5k")]
)
def test_a_number_by_itself(value: float, expected: str) -> None:
    assert short(value) == expected


# Scores of versions as rows on one axis.

ROWS = (ScoreRow("base", "0.25 ± 0.25", 0.25, 0.25), ScoreRow("1@best", "1.00 ± 0.00", 1.0), ScoreRow("1@9", "not yet"))


def text(rows: tuple[ScoreRow, ...], baseline: float | None, width: int, height: int) -> list[str]:
    return ["".join(part for part, _ in runs) for runs in score_rows(rows, baseline, width, height)]


def test_the_best_comes_first_and_what_is_missing_last() -> None:
    assert text(ROWS, 0.75, 42, 8) == [
        "       0.00               1.00",
        "1@best │               ╌    ◆│ 1.00 ± 0.00",
        "base   │├────◆────┤    ╌     │ 0.25 ± 0.25",
        "1@9    │               ╌     │     not yet",
    ]


def test_no_room_no_rows() -> None:
    assert text(ROWS, None, 24, 8) == text(ROWS, None, 60, 1) == []
    assert len(text(ROWS, None, 60, 3)) == 3


@given(
    st.lists(st.tuples(st.floats(-9, 9), st.floats(0, 2)), max_size=6), st.integers(0, 90), st.integers(0, 9),
    st.none() | st.floats(-3, 3),
)  # fmt: skip
def test_rows_fit_whatever_the_scores(scores: list[tuple[float, float]], width: int, height: int, floor: float) -> None:
    rows = tuple(ScoreRow(f"v{place}", f"{one:.2f}", one, error) for place, (one, error) in enumerate(scores))
    shown = text(rows, floor, width, height)
    assert len(shown) <= max(0, height) and all(cells(line) <= width for line in shown)
    assert all(line.count("◆") == 1 for line in shown[1:])


# From rows of the store to what a chart shows, and the words about one of its points.


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
