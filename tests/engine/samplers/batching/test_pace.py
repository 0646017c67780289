"""Small bases are paced by the cache, large ones by their weights."""

import pytest

from marlaas.engine.samplers.batching.requests import CACHE, pace_of


@pytest.mark.parametrize("mixes", [False, True])
def test_rows_of_a_large_base_share_each_reading_of_its_weights(mixes: bool) -> None:
    assert pace_of(CACHE + 1, mixes).rows >= 256 and pace_of(CACHE + 1, mixes).tokens == 1


def test_few_rows_of_a_small_base_stay_for_some_tokens() -> None:
    pace = pace_of(CACHE, mixes=False)
    assert pace.rows <= 32 and pace.tokens > 1
    assert pace.rows % 2 == 0  # aligned pairs stay together


def test_rows_of_all_adapters_of_a_small_base_share_calls() -> None:
    """A turn that comes waits for few tokens of those that run."""
    pace = pace_of(CACHE, mixes=True)
    assert pace.rows >= 64 and pace.tokens <= 8


def test_larger_holes_are_filled_where_calls_cost_more() -> None:
    assert pace_of(CACHE, mixes=False).bridge < pace_of(CACHE, mixes=True).bridge <= pace_of(CACHE + 1, True).bridge
