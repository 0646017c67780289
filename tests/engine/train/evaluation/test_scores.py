"""From rewards to a score: each prompt counts once, and too many failures make no score."""

from __future__ import annotations

import math
from itertools import combinations
from statistics import fmean, stdev

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.train.held_out import Sampled, averages, pass_at, score, standard_error


def prompts(*rewards: float) -> list[Sampled]:
    return [Sampled((reward,)) for reward in rewards]


def test_a_score_with_all_that_it_rests_on() -> None:
    found = score([Sampled((1.0, 0.0)), Sampled((1.0, 1.0)), Sampled((0.0, 0.0)), Sampled((0.5, 0.0))], 2, 1.0)
    means = [0.5, 1.0, 0.0, 0.25]
    assert found.score == fmean(means) and found.stderr == pytest.approx(stdev(means) / 2, rel=1e-12)  # rounding
    assert (found.n, found.failures, found.prompts) == (8, 0, 4)
    assert (found.best_of, found.pass_at) == (fmean([1.0, 1.0, 0.0, 0.5]), 0.5)


def test_one_sample_has_no_best_and_no_pass() -> None:
    found = score(prompts(1.0, 0.0), 1, 1.0)
    assert (found.best_of, found.pass_at) == (None, None)


def test_samples_of_a_prompt_are_no_independent_measurements() -> None:
    """Eight equal samples of ten prompts are as sure as one of each."""
    once = score(prompts(*[1.0, 0.0] * 5), 1, 1.0)
    often = score([Sampled((one.rewards[0],) * 8) for one in prompts(*[1.0, 0.0] * 5)], 8, 1.0)
    assert (once.score, once.stderr) == (often.score, often.stderr) and often.n == 80


@pytest.mark.parametrize(("failed", "is_score"), [(0, True), (6, True), (7, False), (63, False)])
def test_more_than_a_tenth_of_failures_is_no_score(failed: int, is_score: bool) -> None:
    found = score([*prompts(*[1.0] * (64 - failed)), *[Sampled((), 1)] * failed], 1, 1.0)
    assert (found.score is not None) is is_score and (found.n, found.failures) == (64 - failed, failed)


def test_nothing_at_all_is_no_score() -> None:
    assert score([], 1, 1.0).score is None and score([Sampled((), 1)], 1, 1.0).score is None


def test_prompts_with_a_lost_sample_say_nothing_of_pass_and_best() -> None:
    whole = [Sampled((0.0, 1.0))] * 10
    found = score([*whole, Sampled((0.0,), 1)], 2, 1.0)
    assert found.pass_at == 1.0 and found.best_of == 1.0 and found.score == pytest.approx(5 / 11, rel=1e-12)  # rounding


@given(
    st.integers(1, 8).flatmap(lambda n: st.tuples(st.lists(st.booleans(), min_size=n, max_size=n), st.integers(1, n)))
)
def test_pass_at_is_the_mean_over_all_choices(drawn: tuple[list[bool], int]) -> None:
    passed, k = drawn
    mean = fmean(any(chosen) for chosen in combinations(passed, k))
    assert pass_at(len(passed), sum(passed), k) == pytest.approx(mean, abs=1e-12)  # the rounding of 70 summands


@pytest.mark.parametrize(("n", "passed", "k"), [(3, 1, 4), (3, 4, 1), (3, -1, 1), (3, 1, 0)])
def test_pass_at_refuses_what_it_cannot_tell(n: int, passed: int, k: int) -> None:
    with pytest.raises(ValueError, match=f"pass@{k} cannot be told"):
        pass_at(n, passed, k)


def test_the_error_of_few() -> None:
    assert standard_error([]) == standard_error([1.0]) == 0.0 and standard_error([0.0, 1.0]) == math.sqrt(0.25)


def test_averages_leave_texts_out() -> None:
    assert averages([{"a": 1.0, "b": "x"}, {"a": 0.0}, {}]) == {"a": 0.5}
