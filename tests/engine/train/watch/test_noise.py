"""What chance explains: the arithmetic, against exact values and against drawn ones."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.train.watch import ALARMS, differ, level, mostly, noise, quantile

from .runs import noisy


def test_looks_share_what_a_whole_run_may_err() -> None:
    assert sum([level(60)] * 60) == pytest.approx(ALARMS) and level(0) == ALARMS


def test_noise_is_that_of_the_values_and_not_of_their_rise() -> None:
    flat = noisy(0.5, 0.1, 2000)
    rising = [value + step * 0.001 for step, value in enumerate(flat)]
    # 2000 values: a standard error of 2 % of the estimate, so 8 % is four of them
    assert noise(flat) == pytest.approx(0.1, rel=0.08)
    assert noise(rising) == pytest.approx(0.1, rel=0.08)


@pytest.mark.parametrize(
    ("chance", "freedom", "exact"),
    # tables of Student's t, and its limit, the normal distribution
    [(0.01, 10, 2.764), (0.001, 10, 4.144), (0.0005, 20, 3.850), (0.001, 30, 3.385), (0.001, 1e9, 3.090)],
)
def test_quantiles_of_student(chance: float, freedom: float, exact: float) -> None:
    # the expansion ends with its second term; from nine degrees of freedom on the rest is below 3 %
    assert quantile(chance, freedom) == pytest.approx(exact, rel=0.03)


@given(st.integers(0, 10**6), st.floats(1e-3, 1e3), st.floats(-1e3, 1e3))
def test_units_do_not_matter(seed: int, scale: float, offset: float) -> None:
    values = noisy(0.0, 1.0, 30, seed)
    values = values[:25] + [value + 3.0 for value in values[25:]]
    moved = [scale * value + offset for value in values]
    said = [differ(v[:5], v[-5:], v, 1e-3) for v in (values, moved)]
    assert said[0] == said[1] or math.isclose(_excess(values), 1.0, rel_tol=1e-6)  # rounding decides at the edge alone


def _excess(values: list[float]) -> float:
    apart = abs(sum(values[-5:]) - sum(values[:5])) / 5
    return apart / (noise(values) * math.sqrt(0.4) * quantile(1e-3, 2 / 3 * 29))


def test_chance_alone_is_rarely_a_difference() -> None:
    """One look at 4,000 short series of noise: each may err in one of a hundred, in either direction."""
    draw = random.Random(1)
    wrong = 0
    for _ in range(4000):
        values = [draw.gauss(0, 1) for _ in range(20)]
        wrong += differ(values[:5], values[-5:], values, 0.01)
    # 80 are expected; the standard deviation of such a count is 9
    assert wrong < 80 + 4 * 9


def test_few_values_prove_nothing() -> None:
    assert not differ([0.0], [1.0], [0.0, 1.0], 0.4)


@given(st.floats(0.5, 1.0), st.integers(1, 40))
def test_the_chance_of_agreement_bounds_the_exact_one(share: float, count: int) -> None:
    least = math.ceil(share * count)
    exact = sum(math.comb(count, k) for k in range(least, count + 1)) / 2**count
    assert mostly(share, count) >= exact * (1 - 1e-9)  # rounding of two long products
