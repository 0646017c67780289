"""The order in which rows are drawn: shuffled by seed and epoch, complete, and computed without a memory of it."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from marlaas.plugins.data.division import permuted, row_at


@given(st.integers(1, 300), st.integers(0, 2**31), st.integers(0, 5))
def test_an_epoch_has_every_row_once(count: int, seed: int, epoch: int) -> None:
    drawn = [row_at("train", seed, epoch * count + place, count) for place in range(count)]
    assert sorted(drawn) == list(range(count))


@given(st.integers(1, 10**12), st.integers(0, 10**6), st.binary(max_size=20))
def test_a_permutation_of_many_rows_can_be_entered_anywhere(count: int, number: int, key: bytes) -> None:
    numbers = {(number + step) % count for step in range(20)}
    moved = {permuted(each, count, key) for each in numbers}
    assert all(0 <= each < count for each in moved) and len(moved) == len(numbers)


def test_seed_and_epoch_decide_the_order() -> None:
    orders = {
        tuple(row_at("train", seed, epoch * 50 + n, 50) for n in range(50)) for seed in (0, 1, 2) for epoch in (0, 1, 2)
    }
    assert len(orders) == 9


def test_evaluation_has_one_order_for_all_runs() -> None:
    first = [row_at("eval", 0, n, 100) for n in range(100)]
    assert first == [row_at("eval", 7, n, 100) for n in range(100)]
    assert first == [row_at("eval", 0, 100 + n, 100) for n in range(100)]
    assert sorted(first) == list(range(100)) != first


def test_all_topics_of_a_sorted_file_are_met_early() -> None:
    """Of 1,000 rows of four topics in a sorted file: a step of 8 groups, and 64 rows of evaluation."""
    for seed in range(20):
        topics = Counter(row_at("train", seed, n, 1000) // 250 for n in range(40))
        assert len(topics) == 4 and max(topics.values()) < 30
    evaluated = Counter(row_at("eval", 0, n, 1000) // 250 for n in range(64))
    assert len(evaluated) == 4 and min(evaluated.values()) >= 8


def test_places_are_uniform() -> None:
    """Chi-squared with 99 degrees of freedom is below 150 in all but one of 1,000 honest shuffles."""
    counts = Counter(row_at("train", seed, 0, 100) for seed in range(2000))
    assert sum((counts[row] - 20) ** 2 / 20 for row in range(100)) < 150


@pytest.mark.parametrize(("position", "count"), [(0, 0), (-1, 5)])
def test_there_is_no_row_outside(position: int, count: int) -> None:
    with pytest.raises(ValueError, match="there is no row"):
        row_at("train", 0, position, count)
