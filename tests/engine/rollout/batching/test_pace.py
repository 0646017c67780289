"""Small bases are paced by the cache, large ones by their weights."""

import pytest

from marlaas.engine.rollout.batching.pace import CACHE, pace_of


@pytest.mark.parametrize("exact", [False, True])
def test_rows_of_a_large_base_share_each_reading_of_its_weights(exact: bool) -> None:
    assert pace_of(CACHE + 1, exact).rows >= 256 and pace_of(CACHE + 1, exact).tokens == 1


def test_few_rows_of_a_small_base_stay_for_some_tokens() -> None:
    exact, fast = pace_of(CACHE, exact=True), pace_of(CACHE, exact=False)
    assert exact.rows <= fast.rows <= 32 and min(exact.tokens, fast.tokens) > 1
    assert exact.rows % 2 == fast.rows % 2 == 0  # aligned pairs stay together


def test_where_weights_are_read_anew_larger_holes_are_filled() -> None:
    assert pace_of(CACHE, exact=False).bridge < pace_of(CACHE + 1, exact=False).bridge
