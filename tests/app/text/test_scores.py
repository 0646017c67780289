"""Words about held-out scores, paired differences, matrices."""

from __future__ import annotations

import math
import random
import statistics

import pytest
from hypothesis import given, strategies as st

from marlaas.app.text.scores import (
    Meeting,
    held_out,
    matrices,
    paired,
    shown,
    t_quantile,
    with_error,
)
from marlaas.engine.store.queries.learning import Matchup
from marlaas.engine.store.rows import PolicyRow, ScoreBasis

# A held-out score in words: its error, what it rests on, and why there is none.

PLAIN = ScoreBasis(0.03, 64, prompts=64)
SAMPLED = ScoreBasis(0.05, 510, failures=2, prompts=64, samples=8, best_of=0.9, pass_at=0.8)
LOST = ScoreBasis(0.0, 12, failures=52, prompts=12)


@pytest.mark.parametrize(
    ("value", "basis", "short", "whole"),
    [
        (None, None, "-", "-"),
        (0.5, None, "0.50", "0.50"),
        (0.5, PLAIN, "0.50 ± 0.03", "0.50 ± 0.03 (64 prompts)"),
        (1.0, ScoreBasis(0.0, 1, prompts=1), "1.00 ± 0.00", "1.00 ± 0.00 (1 prompt)"),
        (
            0.5,
            SAMPLED,
            "0.50 ± 0.05",
            "0.50 ± 0.05 (64 prompts, 8 samples of each, pass@8 0.80, best@8 0.90, 2 of 512 episodes failed)",
        ),
        (None, LOST, "no score", "no score: 52 of 64 episodes failed"),
    ],
)
def test_a_score_in_few_words_and_in_all(value: float | None, basis: ScoreBasis | None, short: str, whole: str) -> None:
    assert (with_error(value, basis), held_out(value, basis)) == (short, whole)


# Paired differences: against published quantiles, by hand, and by how often the interval covers the truth.


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


# Win-rates between versions: pairs of the store as tables.

POLICIES = (
    PolicyRow("player", ("first",)),
    PolicyRow("rivals", ("second",), pool="player"),
    PolicyRow("old", ("third",), frozen="player@0"),
    PolicyRow("base_line", ("fourth",), frozen="base"),
)


def pair(version: int, against: str, against_version: int, *rewards: float) -> Matchup:
    squares = math.fsum(reward * reward for reward in rewards)
    return Matchup("player", version, against, against_version, len(rewards), math.fsum(rewards), squares)


def test_pools_and_beginnings_count_as_what_they_are() -> None:
    pairs = [
        pair(5, "player@0", 0, 1, 0),
        pair(5, "rivals", 0, 1, 1),
        pair(5, "old", 0, 1, 1),
        pair(6, "rivals", 5, 0.5),
        pair(6, "rivals", 6, 0.5),
        pair(6, "base_line", 0, 1.0),
        Matchup("rivals", 5, "player", 6, 1, 0.5, 0.25),
        Matchup("judge", 1, "player", 6, 1, 0.5, 0.25),
    ]
    itself, base = matrices(pairs, POLICIES, "player")
    assert (itself.against, itself.rows, itself.columns) == ("player", (6, 5), (0, 5, 6))
    assert itself.cells[5, 0].games == 6 and itself.cells[5, 0].mean == 5 / 6
    assert itself.cells[6, 5].games == 1 and (6, 6) not in itself.cells, "against itself nothing is learned"
    assert itself.cells[5, 6] == Meeting(1, 0.5, 0.0), "the pool's side is the player's, too"
    assert (base.against, base.cells) == ("base", {(6, 0): Meeting(1, 1.0, 0.0)})
    assert matrices(pairs, POLICIES, "nobody") == [] and itself.title == "player against player"


@given(st.lists(st.floats(-10, 10), min_size=2, max_size=40))
def test_means_have_the_standard_error_of_the_sample(rewards: list[float]) -> None:
    (matrix,) = matrices([pair(3, "judge", 1, *rewards)], POLICIES, "player")
    cell = matrix.cells[3, 1]
    assert cell.games == len(rewards) and math.isclose(cell.mean, statistics.fmean(rewards), abs_tol=1e-9)
    assert math.isclose(cell.stderr, statistics.stdev(rewards) / math.sqrt(len(rewards)), abs_tol=1e-6)


@given(st.lists(st.integers(0, 1000), unique=True).map(sorted), st.integers(1, 20))
def test_where_there_is_no_room_some_versions_stand_for_all(versions: list[int], room: int) -> None:
    some = shown(versions, room)
    assert len(some) == min(room, len(versions)) == len(set(some)) and set(some) <= set(versions)
    if versions:
        assert some[-1] == versions[-1] and (room == 1 or some[0] == versions[0])


def test_columns_that_many_have_met_come_before_others() -> None:
    """Evaluations are against version 0, the pool brings in one now and then."""
    pairs = [pair(step, "player@0", 0, 1.0) for step in range(1, 9)] + [pair(8, "rivals", n, 1.0) for n in (2, 4, 6)]
    (matrix,) = matrices(pairs, POLICIES, "player")
    assert matrix.columns_for(1) == (0,) and matrix.columns_for(2) == (0, 6) and matrix.columns_for(99) == (0, 2, 4, 6)
