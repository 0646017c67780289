"""Paired differences: against published quantiles, by hand, and by how often the interval covers the truth."""

from __future__ import annotations

import math
import random

import pytest

from marlaas.app.words.scores import FEW, paired, t_quantile


@pytest.mark.parametrize(
    ("freedom", "quantile"),
    # two-sided 95 %, from scipy.stats.t.ppf(0.975, freedom)
    [
        (1, 12.706204736),
        (2, 4.302652730),
        (3, 3.182446305),
        (10, 2.228138852),
        (63, 1.998340543),
        (1000, 1.962339081),
    ],
)
def test_quantiles_are_those_of_the_tables(freedom: int, quantile: float) -> None:
    assert t_quantile(0.975, freedom) == pytest.approx(quantile, rel=1e-9)


def test_both_ways_to_a_quantile_agree() -> None:
    # the expansion's next term is of the order of 1 / FEW ** 4
    assert t_quantile(0.975, FEW) - t_quantile(0.975, FEW + 1) == pytest.approx(2.37 / FEW**2, rel=0.02)


def test_a_difference_by_hand() -> None:
    # differences 1, 0, 1, 0: mean 1/2, deviation sqrt(1/3), error sqrt(1/12), t(3) = 3.1824
    found = paired({0: 1, 1: 1, 2: 1, 3: 0, 9: 1}, {0: 0, 1: 1, 2: 0, 3: 0, 7: 1})
    assert found is not None and (found.mean, found.prompts, found.differing) == (0.5, 4, 2)
    half = pytest.approx(3.1824463 * math.sqrt(1 / 12))
    assert found.high - found.mean == half and found.mean - found.low == half
    assert not found.clear


def test_fewer_than_two_prompts_have_no_interval() -> None:
    assert paired({1: 0.5}, {1: 0.25}) is None and paired({1: 1, 2: 1}, {3: 1, 4: 1}) is None


def test_pairing_by_prompt_sees_what_two_scores_cannot() -> None:
    hard = {prompt: float(prompt % 2) for prompt in range(64)}
    better = {prompt: value + 0.1 + 0.001 * (prompt % 3) for prompt, value in hard.items()}
    found = paired(better, hard)
    assert found is not None and found.clear and found.high - found.low < 0.001
    # unpaired, the error of each score alone is 0.06


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    draw, covered, runs = random.Random(0), 0, 2000
    for _ in range(runs):
        first = {prompt: draw.gauss(0.3, 1.0) for prompt in range(12)}
        found = paired(first, dict.fromkeys(first, 0.0))
        covered += found is not None and found.low <= 0.3 <= found.high
    # binomial with p = 0.95: a deviation of 4 standard errors, 0.0195, comes by chance once in 16,000 seeds
    assert abs(covered / runs - 0.95) < 0.0195
