"""Drawn charts: curves, bands, points, axes; scales, plots of a task."""

from __future__ import annotations

import math
from array import array
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.app.chart.draw import (
    MOST_CURVES,
    SHAPES,
    WEIGHTS,
    WITHIN,
    Curve,
    Drawing,
    Plot,
    Point,
    Scale,
    decimate,
    draw,
    last_step,
    linear,
    logarithmic,
    smoothed,
)
from marlaas.app.lists.lines import Learner
from marlaas.app.questions import LearningAnswer, LearningCurve
from marlaas.app.text.format import cells
from marlaas.app.tui.widgets.task_charts import Look, moved, plot
from marlaas.engine.store.queries.learning import Change, History, Track
from marlaas.engine.store.rows import EvalRow
from tests.examples import examples

STRAIGHT = """\
1.0 ┤                ⣀⠤⠒⠉
    │            ⣀⠤⠒⠉    
0.5 ┤        ⣀⠤◆⠉        
    │╌╌╌╌⣀⠤⠒⠉╌╌╌╌╌╌╌╌╌╌╌╌
0.0 ┤⣀⠤⠒⠉                
    └┴───────────┴──────┴
     0           5      8
"""


def line(*values: float, first: int = 0) -> Curve:
    return Curve(range(first, first + len(values)), values)


def test_a_straight_line() -> None:
    plot = Plot([Curve([0, 8], [0.0, 1.0])], [Point(4, 0.5)], 0.25, end=8, unit=True)
    assert drawn(plot, 25, 7) == STRAIGHT.splitlines()


def test_a_young_curve_is_no_dot_at_the_left() -> None:
    for made, end, last in ((9, 60, "15"), (29, 60, "30"), (70, 60, "70"), (1, 60, "15"), (2, 6, "6"), (1, 32, "8")):
        assert drawn(Plot([line(0.1, *[0.3] * made)], end=end), 40, 8)[-1].endswith(last)
    for made in (9, 16, 1000, 30_000):
        assert made <= last_step(Plot([line(0.1, *[0.3] * made)], end=40_000)) < 2 * made + 8
    assert last_step(Plot(end=40_000)) == 40_000


def test_curves_are_told_apart_by_shapes() -> None:
    curves = [Curve(range(60), [0.2 * place] * 60, place=place) for place in range(MOST_CURVES)]
    drawing = draw(Plot(curves, end=60, unit=True), 80, 20)
    shapes = {(one, kind) for line in drawing.lines for run, kind in line for one in run if one in SHAPES}
    assert shapes == {(shape, f"curve{place}") for place, shape in enumerate(SHAPES)}
    assert not set(SHAPES) & set("".join(drawn(Plot(curves[:1], end=60), 80, 20)))


def test_a_logarithmic_axis_says_what_it_leaves_out() -> None:
    drawing = draw(Plot([line(1e-5, 0.0, -1.0, 1.0)], points=[Point(3, 0.0)], end=3, logarithmic=True), 40, 20)
    assert drawing.omitted == 3
    lines = joined(drawing)
    assert lines[0].startswith("    1 ┤") and lines[17].startswith(" 1e-5 ┤")
    nothing = draw(Plot([line(-1.0)], end=3, logarithmic=True), 40, 20)
    assert nothing.omitted == 1 and not dots(nothing, "curve0")


def test_what_is_not_finite_leaves_a_gap_and_is_said() -> None:
    drawing = draw(Plot([line(0.5, 0.5, math.nan, math.inf, 0.5, 0.5)], end=5), 60, 10)
    assert drawing.omitted == 2
    columns = sorted(dots(drawing, "curve0"))
    assert max(after - before for before, after in pairwise(columns)) > 40


numbers = st.floats(allow_nan=True, allow_infinity=True)


@st.composite
def curves(draw: st.DrawFn) -> Curve:
    steps = sorted(draw(st.sets(st.integers(0, 100_000), max_size=30)))
    values = [draw(st.lists(numbers, min_size=len(steps), max_size=len(steps))) for _ in range(3)]
    low, high = values[1:] if draw(st.booleans()) else ([], [])
    raw = draw(st.lists(numbers, min_size=len(steps), max_size=len(steps))) if draw(st.booleans()) else []
    return Curve(steps, values[0], low, high, raw)


@st.composite
def plots(draw: st.DrawFn) -> Plot:
    points = draw(st.lists(st.builds(Point, st.integers(0, 500), numbers, numbers, st.booleans()), max_size=5))
    marks = draw(st.lists(st.integers(0, 500), max_size=5))
    return Plot(
        draw(st.lists(curves(), max_size=MOST_CURVES)),
        sorted(points, key=lambda point: point.step),
        draw(st.none() | numbers),
        marks,
        draw(st.integers(1, 100_000)),
        draw(st.booleans()),
        draw(st.booleans()),
        draw(st.none() | st.integers(0, 500)),
    )


@settings(max_examples=examples(50), deadline=None)
@given(plots(), st.integers(0, 90), st.integers(0, 30), st.booleans())
def test_any_plot_fits_any_room_exactly(plot: Plot, width: int, height: int, bare: bool) -> None:
    lines = joined(draw(plot, width, height, bare))
    assert len(lines) == height
    assert all(len(one) == cells(one) == width for one in lines), "each cell has one character of width 1"


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=300).map(sorted),
    st.integers(1, 40),
    st.integers(20, 120),
    st.integers(5, 40),
)
def test_what_rises_is_drawn_rising(values: list[float], apart: int, width: int, height: int) -> None:
    steps = range(0, len(values) * apart, apart)
    columns = dots(draw(Plot([Curve(steps, values)], end=len(values) * apart), width, height), "curve0")
    highest = [min(columns[column]) for column in sorted(columns)]
    lowest = [max(columns[column]) for column in sorted(columns)]
    assert highest == sorted(highest, reverse=True) and lowest == sorted(lowest, reverse=True)


@given(st.lists(st.floats(allow_nan=False), max_size=200), st.integers(2, 50))
def test_means_lie_in_their_range(values: list[float], most: int) -> None:
    found = decimate(Curve(range(len(values)), values), most, max(1, len(values)))
    assert len(found.buckets) <= most
    assert all(bucket.low <= bucket.mean <= bucket.high and math.isfinite(bucket.mean) for bucket in found.buckets)


def tensorboard(values: list[float], weight: float) -> list[float]:
    """``resmoothDataset`` of tensorboard/components/vz_line_chart2/line-chart.ts, line by line."""
    last = 0.0 if values else math.nan
    accumulated = 0
    found = []
    for value in values:
        if not math.isfinite(value):
            found.append(value)
            continue
        last = last * weight + (1 - weight) * value
        accumulated += 1
        found.append(last / (1 - weight**accumulated if weight != 1 else 1))
    return found


@given(
    st.lists(st.floats(-1e6, 1e6) | st.sampled_from([math.nan, math.inf, -math.inf]), max_size=60),
    st.sampled_from(WEIGHTS),
)
def test_it_is_tensorboards(values: list[float], weight: float) -> None:
    wanted = pytest.approx(tensorboard(values, weight), rel=1e-9, abs=1e-9, nan_ok=True)
    assert list(smoothed(values, weight)) == wanted


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


def track(first: int, *values: float) -> Track:
    return Track(array("q", range(first, first + len(values))), array("d", values))


def evaluation(step: int, score: float, version: str) -> EvalRow:
    return EvalRow(
        step=step,
        environment_version="e",
        score=score,
        stderr=0.05,
        n=64,
        floor=0.1,
        metrics={},
        prompts=64,
        series=version,
    )


def answer(metric: str = "reward", **tracks: Track) -> LearningAnswer:
    evals = (evaluation(0, 0.1, "old"), evaluation(2, 0.3, "old"), evaluation(2, 0.2, "fresh"))
    history = History(tracks, (Change(1, "old"), Change(3, "fresh")))
    other = LearningCurve(History({metric: track(1, 0.9)}))
    return LearningAnswer(metric, {Learner(1): LearningCurve(history, evals), Learner(7): other})


def test_a_curve_is_smoothed_with_its_band() -> None:
    known = answer(reward=track(1, 0, 1), reward_min=track(1, 0, 0.5), reward_max=track(1, 0.5, 1))
    (curve,) = plot(known, [], Look(weight=0.5)).curves
    assert list(curve.values) == pytest.approx([0, 2 / 3]) and list(curve.raw) == [0, 1]
    assert list(curve.low) == pytest.approx([0, 1 / 3]) and list(curve.high) == pytest.approx([0.5, 5 / 6])
    (plain,) = plot(known, [], Look(weight=0.0)).curves
    assert list(plain.values) == [0, 1] and not plain.raw
    (scores,) = plot(answer("held-out"), [], Look(weight=0.9)).curves
    assert list(scores.values) == [0.2] and not scores.raw, "a score is a mean already"


def test_points_say_whether_they_compare() -> None:
    drawn = plot(answer(reward=track(1, 0.4, 0.5)), [], Look())
    points = [(point.step, point.score, point.earlier) for point in drawn.points]
    assert points == [(0, 0.1, True), (2, 0.3, True), (2, 0.2, False)], "what compares covers what does not"
    assert drawn.marks == [3], "the environment was edited before this step"
    assert not plot(answer("loss", loss=track(1, 0.4)), [], Look()).points, "scores are no losses"


@given(st.sets(st.integers(1, 10_000), min_size=1), st.integers(0, 10_000), st.sampled_from([-1, 1]), st.floats(0, 99))
def test_the_cursor_always_arrives(steps: set[int], cursor: int, by: int, apart: float) -> None:
    points = Track(array("q", sorted(steps)), array("d", [0.0] * len(steps)))
    there = moved(points, cursor, by, apart)
    assert there in steps
    if cursor in steps and there != cursor:
        assert (there > cursor) == (by > 0)


_BITS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))


def drawn(plot: Plot, width: int, height: int) -> list[str]:
    """The chart's lines."""
    return joined(draw(plot, width, height))


def joined(drawing: Drawing) -> list[str]:
    """A drawing's lines."""
    return ["".join(run for run, _ in line) for line in drawing.lines]


def dots(drawing: Drawing, kind: str) -> dict[int, list[int]]:
    """The rows (from the top) of the braille dots of a kind, by column of dots."""
    found: dict[int, list[int]] = {}
    for row, line in enumerate(drawing.lines):
        column = 0
        for run, its_kind in line:
            for character in run:
                mask = ord(character) - 0x2800 if its_kind.removesuffix(WITHIN) == kind else 0
                for x in (0, 1):
                    for y in range(4):
                        if 0 <= mask < 256 and mask & _BITS[x][y]:
                            found.setdefault(2 * column + x, []).append(4 * row + y)
                column += 1
    return found
