"""Decimation keeps means and ranges, and says what it left out."""

from __future__ import annotations

import math
from array import array

import pytest
from hypothesis import given, strategies as st

from marlaas.app.chart.draw import decimate
from marlaas.app.chart.plot import Curve


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
