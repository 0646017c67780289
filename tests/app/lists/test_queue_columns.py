"""The queue's columns fill the terminal and never more."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from marlaas.app.lists.queue_lines import NARROW, TINY, Arrangement, Course, arrange, cell_text, layout, table_cells
from marlaas.engine.store.queries.reader import Reader

from ..filling import Filling


def test_columns_fit_at_every_width() -> None:
    for width in range(1, 401):
        assert table_cells(layout(width)) <= max(width - 4, table_cells(TINY)), width


def test_names_grow_with_the_terminal() -> None:
    assert {c.name: c.width for c in layout(100)}["task"] > {c.name: c.width for c in layout(80)}["task"]


def test_wide_terminals_show_more_columns_not_wider_ones() -> None:
    shown = {width: [column.name for column in layout(width)] for width in (60, 80, 120, 160, 200)}
    assert "tenant" not in shown[60] and "held-out" in shown[60] and "rewards" in shown[80]
    assert {"best", "time", "why"} <= set(shown[160])
    assert {"stale", "tokens/s", "tokens", "left"} <= set(shown[200])
    assert shown[200][8:] == ["held-out", "best", "stale", "tokens", "tokens/s", "time", "left", "why"]
    for narrower, wider in pairwise(layout(width) for width in range(120, 240)):
        assert {column.name for column in narrower} <= {column.name for column in wider}
    widths = {column.name: column.width for column in layout(200)}
    assert widths["task"] <= 31 and widths["tenant"] <= 18, "names do not become wide gaps"


@pytest.mark.parametrize(("steps", "text"), [(60, "7/60"), (400_000, "0 %")])
def test_steps_that_have_no_room_are_a_share(filling: Filling, steps: int, text: str) -> None:
    filling.task("running", made=7)
    with Reader(filling.path) as reader:
        row = replace(reader.tasks()[0], steps=steps)
    column = next(column for column in NARROW if column.name == "step")
    assert cell_text(arrange([row], Arrangement())[0], Course(), False, column) == text
