"""The small parts of the task view's panes."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st

from marlaas.app.widgets.task.metric_list import trend
from marlaas.app.words.format import BARS


def test_a_trend_goes_from_the_smallest_to_the_largest_value() -> None:
    assert trend([5, 6, 7], 10) == "▁▅█" and trend([1, 1, 1], 10) == "▁▁▁"
    assert trend([0, 0, 4, 4, 8, 8], 3) == "▁▅█", "each cell is the mean of its share"
    assert trend([], 10) == "" and trend([1.0], 0) == "" and trend([math.nan, math.inf], 4) == ""


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200), st.integers(0, 40))
def test_any_values_fit(values: list[float], width: int) -> None:
    drawn = trend(values, width)
    assert len(drawn) <= width and set(drawn) <= set(BARS)
