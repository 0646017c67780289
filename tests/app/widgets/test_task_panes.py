"""The small parts of the task view's panes."""

from __future__ import annotations

import math

from hypothesis import given, strategies as st

from marlaas.app.widgets.task_charts import legend_names, trend
from marlaas.app.words.format import BARS


def test_a_trend_goes_from_the_smallest_to_the_largest_value() -> None:
    assert trend([5, 6, 7], 10) == "▁▄▇" and trend([1, 1, 1], 10) == "▁▁▁"
    assert trend([0, 0, 4, 4, 8, 8], 3) == "▁▄▇", "each cell is the mean of its share"
    assert trend([], 10) == "" and trend([1.0], 0) == "" and trend([math.nan, math.inf], 4) == ""


@given(st.lists(st.floats(allow_nan=True, allow_infinity=True), max_size=200), st.integers(0, 40))
def test_any_values_fit(values: list[float], width: int) -> None:
    drawn = trend(values, width)
    assert len(drawn) <= width and set(drawn) <= set(BARS)


def test_all_curves_are_named_in_little_room() -> None:
    names = ["3 …rds [lr=0.0001]", "4 …rds [lr=0.0003]", "17 words", "5 …rds [lr=0.001]"]
    assert legend_names(names, 200) == names
    short = legend_names(names, 50)
    assert short == ["3 …0.0001]", "4 …0.0003]", "17 words", "5 …=0.001]"] and sum(map(len, short)) + 9 <= 50
    assert legend_names(names, 10) == ["3", "4", "17", "5"] and legend_names([], 0) == []
