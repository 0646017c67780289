"""Smoothing is TensorBoard's: bias-corrected, and it leaves what it cannot smooth."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st

from marlaas.app.chart.draw import WEIGHTS, smoothed


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
