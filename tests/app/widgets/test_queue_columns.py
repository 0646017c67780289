"""The queue's columns fill the terminal and never more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from marlaas.app.widgets.queue.columns import NARROW, layout


@given(st.integers(1, 400))
def test_columns_fit_and_fill(width: int) -> None:
    taken = sum(column.width + 1 for column in layout(width))
    assert taken <= max(width - 4, sum(column.width + 1 for column in NARROW))


def test_names_grow_with_the_terminal() -> None:
    assert {c.name: c.width for c in layout(100)}["task"] > {c.name: c.width for c in layout(80)}["task"]
