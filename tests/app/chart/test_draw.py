"""Drawn charts: curves, bands, points, axes; bucketed and smoothed."""

from __future__ import annotations

import math
from array import array
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.app.chart.draw import WEIGHTS, decimate, draw, last_step, smoothed
from marlaas.app.chart.plot import MOST_CURVES, SHAPES, Curve, Mark, Plot, Point
from marlaas.app.text.format import cells

from ...examples import examples
from .reading import band, dots, joined, text

# The chart as characters.

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
    assert text(plot, 25, 7) == STRAIGHT.splitlines()


def test_nothing_to_draw() -> None:
    blank = text(Plot(), 40, 10)
    assert [len(one) for one in blank] == [40] * 10 and "1.0 ┤" in blank[0]
    for width, height in ((5, 10), (40, 2), (0, 3), (10, 0)):
        assert text(Plot([line(0.5)]), width, height) == [" " * width] * height


def test_a_young_curve_is_no_dot_at_the_left() -> None:
    for made, end, last in ((9, 60, "15"), (29, 60, "30"), (70, 60, "70"), (1, 60, "15"), (2, 6, "6"), (1, 32, "8")):
        assert text(Plot([line(0.1, *[0.3] * made)], end=end), 40, 8)[-1].endswith(last)
    for made in (9, 16, 1000, 30_000):
        assert made <= last_step(Plot([line(0.1, *[0.3] * made)], end=40_000)) < 2 * made + 8
    assert last_step(Plot(end=40_000)) == 40_000


def test_a_band_lies_around_the_mean() -> None:
    curve = Curve([0, 4, 8], [0.5, 0.5, 0.5], low=[0.0, 0.0, 0.0], high=[1.0, 1.0, 1.0])
    filled = band(draw(Plot([curve], end=8, unit=True), 40, 20))
    assert len(filled) == 40 - 5 and all(rows == list(range(2 * 18)) for rows in filled.values())
    two = draw(Plot([curve, curve], end=8, unit=True), 40, 20)
    assert not band(two), "bands of several curves would hide each other"


def test_a_band_is_as_high_as_its_edges() -> None:
    curve = Curve([0, 8], [0.5, 0.5], low=[0.3, 0.3], high=[0.7, 0.7])
    drawing = draw(Plot([curve], end=8, unit=True), 40, 12)
    (rows,) = {tuple(rows) for rows in band(drawing).values()}
    dots_high = 10 * 4 - 1  # ten rows of cells
    assert rows[0] == round(0.3 * dots_high) // 2 and rows[-1] == round(0.7 * dots_high) // 2
    assert {len(one) for one in dots(drawing, "curve0").values()} == {1}, "the curve runs through it undisturbed"


def test_steps_that_share_a_column_have_a_band_of_their_own() -> None:
    values = [float(step % 2) for step in range(10_000)]
    smooth = [0.5] * 10_000
    for curve in (Curve(range(10_000), values), Curve(range(10_000), smooth, raw=values)):
        drawing = draw(Plot([curve], end=10_000), 60, 12)
        assert all((rows[0], rows[-1]) == (0, 19) for rows in map(sorted, band(drawing).values()))
        assert {len(rows) for rows in dots(drawing, "curve0").values()} == {1}


def test_what_was_measured_shows_faintly_behind() -> None:
    raw, smooth = [0.0, 1.0] * 10, [0.5] * 20
    drawing = draw(Plot([Curve(range(20), smooth, raw=raw)], end=19, unit=True), 60, 12)
    faint = dots(drawing, "ghost")
    assert min(map(min, faint.values())) == 0 and max(map(max, faint.values())) == 39
    middle = dots(drawing, "curve0")
    assert {len(rows) for rows in middle.values()} == {1}, "its dots give way to the curve's"
    both = draw(Plot([Curve(range(20), smooth, raw=raw), Curve(range(20), raw, place=1)], end=19), 60, 12)
    assert not dots(both, "ghost"), "of several curves only the smooth ones are shown"


def test_a_bare_chart_is_all_curve() -> None:
    plot = Plot([line(0.0, 1.0)], end=1, unit=True, marks=[Mark(1, "9f2c41")])
    assert "└" in text(plot, 30, 6)[-2]
    bare = joined(draw(plot, 30, 4, bare=True))
    assert len(bare) == 4 and bare[0].startswith("1.0 ┤") and bare[-1].startswith("0.0 ┤")


def test_a_point_has_its_error() -> None:
    lines = text(Plot(points=[Point(4, 0.5, 0.3), Point(8, 0.5, 0.0, earlier=True)], end=8, unit=True), 26, 9)
    column = lines[3].index("◆")
    assert [one[column] for one in lines[:7]] == [" ", "│", "│", "◆", "│", "│", " "] and lines[3].endswith("◇")


def test_marks_stand_from_top_to_bottom_under_their_labels() -> None:
    marks = [Mark(0, "9f2c41"), Mark(1, "aa17de"), Mark(30, "00ff00")]
    lines = text(Plot(marks=marks, end=60), 44, 9)
    assert "aa17de" in lines[0] and "9f2c41" not in lines[0], "the later one of two in one place"
    assert all(one[lines[0].index("00ff00")] == "┊" for one in lines[1:7])


def test_curves_are_told_apart_by_shapes() -> None:
    curves = [Curve(range(60), [0.2 * place] * 60, place=place) for place in range(MOST_CURVES)]
    drawing = draw(Plot(curves, end=60, unit=True), 80, 20)
    shapes = {(one, kind) for line in drawing.lines for run, kind in line for one in run if one in SHAPES}
    assert shapes == {(shape, f"curve{place}") for place, shape in enumerate(SHAPES)}
    assert not set(SHAPES) & set("".join(text(Plot(curves[:1], end=60), 80, 20)))


def test_a_logarithmic_axis_says_what_it_leaves_out() -> None:
    drawing = draw(Plot([line(1e-5, 0.0, -1.0, 1.0)], points=[Point(3, 0.0)], end=3, logarithmic=True), 40, 20)
    assert drawing.notes == ("3 values ≤ 0: left out",)
    lines = joined(drawing)
    assert lines[0].startswith("    1 ┤") and lines[17].startswith(" 1e-5 ┤")
    nothing = draw(Plot([line(-1.0)], end=3, logarithmic=True), 40, 20)
    assert nothing.notes == ("1 value ≤ 0: left out",) and not dots(nothing, "curve0")


def test_what_is_not_finite_leaves_a_gap_and_is_said() -> None:
    drawing = draw(Plot([line(0.5, 0.5, math.nan, math.inf, 0.5, 0.5)], end=5), 60, 10)
    assert drawing.notes == ("2 values not finite: left out",)
    columns = sorted(dots(drawing, "curve0"))
    assert max(after - before for before, after in pairwise(columns)) > 40


def test_the_cursor_crosses_the_curve() -> None:
    lines = text(Plot([line(0.0, 1.0, 0.0)], end=2, unit=True, cursor=1), 31, 9)
    column = lines[0].index("┼")
    assert [one[column] for one in lines[1:7]].count("│") > 3


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
    marks = draw(st.lists(st.builds(Mark, st.integers(0, 500), st.sampled_from(["", "9f2c41"])), max_size=5))
    return Plot(
        draw(st.lists(curves(), max_size=MOST_CURVES)),
        sorted(points, key=lambda point: point.step),
        draw(st.none() | numbers),
        sorted(marks, key=lambda mark: mark.step),
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


@pytest.mark.parametrize("size", [1e-5, 1e-3, 1.0, 400.0, 1e6, 1e12, 1e30])
def test_the_ends_of_any_range_have_labels(size: float) -> None:
    lines = text(Plot([line(0.0, 0.5 * size, size)], end=2), 60, 12)
    labels = [one.split("┤")[0].strip() for one in lines if "┤" in one]
    assert len(labels) >= 2 and len(set(labels)) == len(labels) and all(len(label) <= 7 for label in labels)


def test_points_have_the_colour_of_the_curve_whose_they_are() -> None:
    def kinds(*curves: Curve) -> set[str]:
        drawn = draw(Plot(curves, [Point(4, 0.2, 0.05)], end=8, unit=True), 40, 12)
        return {kind for runs in drawn.lines for text, kind in runs if "◆" in text}

    level = Curve([0, 8], [0.8, 0.8])
    assert kinds(level) == {"point"} and kinds(level, replace(level, place=1)) == {"curve0"}


# Decimation keeps means and ranges, and says what it left out.


def test_few_steps_stay_as_they_are() -> None:
    found = decimate(Curve([1, 2, 3], [0.1, 0.2, 0.3]), 100, 10)
    assert [(bucket.step, bucket.mean) for bucket in found.buckets] == [(1, 0.1), (2, 0.2), (3, 0.3)]
    assert [bucket.joined for bucket in found.buckets] == [False, True, True]


def test_many_steps_become_means_and_ranges() -> None:
    curve = Curve(array("q", range(1000)), array("d", [step % 10 for step in range(1000)]))
    found = decimate(curve, 11, 999).buckets
    assert len(found) == 11 and {bucket.low for bucket in found} == {0.0} and {bucket.high for bucket in found} == {9.0}
    assert all(math.isclose(bucket.mean, 4.5, abs_tol=0.3) for bucket in found)


def test_a_band_that_is_given_is_averaged() -> None:
    curve = Curve(range(100), [0.5] * 100, low=[0.0, 0.2] * 50, high=[0.9, math.nan] * 50)
    (first, *_) = decimate(curve, 2, 99).buckets
    assert (first.low, first.mean, first.high) == pytest.approx((0.1, 0.5, 0.9))


def test_what_is_left_out_is_counted() -> None:
    curve = Curve(range(6), [1.0, math.nan, -1.0, 0.0, math.inf, 2.0])
    assert (decimate(curve, 2, 5).infinite, decimate(curve, 2, 5, positive=True).negative) == (2, 2)
    found = decimate(curve, 6, 5, positive=True)
    assert [(bucket.step, bucket.joined) for bucket in found.buckets] == [(0, False), (5, False)]


@given(st.lists(st.floats(allow_nan=False), max_size=200), st.integers(2, 50))
def test_means_lie_in_their_range(values: list[float], most: int) -> None:
    found = decimate(Curve(range(len(values)), values), most, max(1, len(values)))
    assert len(found.buckets) <= most
    assert all(bucket.low <= bucket.mean <= bucket.high and math.isfinite(bucket.mean) for bucket in found.buckets)


# Smoothing is TensorBoard's: bias-corrected, and it leaves what it cannot smooth.


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


@given(st.lists(st.floats(-1e6, 1e6), max_size=60), st.sampled_from(WEIGHTS))
def test_it_is_tensorboards(values: list[float], weight: float) -> None:
    assert list(smoothed(values, weight)) == pytest.approx(tensorboard(values, weight), rel=1e-9, abs=1e-9)


def test_the_first_value_is_not_drawn_towards_zero() -> None:
    assert list(smoothed([1.0, 1.0, 1.0], 0.9)) == pytest.approx([1.0, 1.0, 1.0])
    assert list(smoothed([0.0, 1.0], 0.6)) == pytest.approx([0.0, 0.4 / 0.64])


def test_gaps_stay_and_count_for_nothing() -> None:
    found = list(smoothed([1.0, math.nan, 3.0, math.inf], 0.5))
    assert math.isnan(found[1]) and found[3] == math.inf
    assert [found[0], found[2]] == pytest.approx([1.0, (0.5 + 3.0) / 1.5])


def test_no_weight_and_one_value_are_left_alone() -> None:
    values = [3.0, 1.0, 2.0]
    assert smoothed(values, 0.0) is values and list(smoothed([7.0], 0.9)) == [7.0]


@given(st.lists(st.floats(-1e9, 1e9), min_size=1, max_size=80), st.sampled_from(WEIGHTS))
def test_means_lie_between_what_there_was(values: list[float], weight: float) -> None:
    slack = 1e-9 * max(1.0, *map(abs, values))  # rounding
    for place, value in enumerate(smoothed(values, weight)):
        assert min(values[: place + 1]) - slack <= value <= max(values[: place + 1]) + slack


def test_a_long_run_ends_at_its_level() -> None:
    found = smoothed([0.0] * 1000 + [1.0] * 5000, 0.97)
    assert len(found) == 6000 and found[-1] == pytest.approx(1.0)
