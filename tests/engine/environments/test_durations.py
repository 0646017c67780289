"""Buckets of seconds keep a median true to a tenth."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.durations import HIGHEST, LOWEST, bucket_of, quantile


@given(st.floats(min_value=0.002, max_value=4000.0))
def test_a_time_comes_back_to_within_a_tenth(seconds: float) -> None:
    assert quantile({bucket_of(seconds): 7}, 0.5) == pytest.approx(seconds, rel=0.1)


@given(st.lists(st.floats(min_value=0.002, max_value=4000.0), min_size=1))
def test_shares_are_in_order_and_within_what_was_seen(seconds: list[float]) -> None:
    counts = Counter(map(bucket_of, seconds))
    median, slow = quantile(counts, 0.5), quantile(counts, 0.95)
    assert 0.84 * min(seconds) <= median <= slow <= 1.19 * max(seconds)


@pytest.mark.parametrize(("seconds", "bucket"), [(0.0, LOWEST), (-1.0, LOWEST), (1e9, HIGHEST), (1.0, 0), (2.0, 4)])
def test_edges(seconds: float, bucket: int) -> None:
    assert bucket_of(seconds) == bucket


def test_of_nothing_it_is_0() -> None:
    assert quantile({}, 0.5) == 0.0
