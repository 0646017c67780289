"""Fits find what made the numbers, and never a negative price."""

from __future__ import annotations

from random import Random

import pytest

from marlaas.engine.simulate.profile import non_negative, thinned


def test_what_made_the_numbers_is_found() -> None:
    random = Random(3)
    rows = [(random.uniform(1, 50), random.uniform(1, 400), random.uniform(0, 900)) for _ in range(60)]
    found = non_negative(rows, [0.004 * a + 0.0003 * b + 0.00002 * c for a, b, c in rows])
    assert found == pytest.approx((0.004, 0.0003, 0.00002))


def test_nothing_becomes_faster_by_more_work() -> None:
    assert non_negative([(1.0, 2.0), (2.0, 1.0)], [0.0, 3.0]) == pytest.approx((1.2, 0.0))
    assert non_negative([(1.0,)], [-1.0]) == (0.0,)
    assert non_negative([], []) == ()


def test_a_distribution_is_thinned_evenly() -> None:
    assert thinned([3.0, 1.0, 2.0]) == (1.0, 2.0, 3.0)
    kept = thinned(range(1001), most=11)
    assert kept == tuple(range(0, 1001, 100))
