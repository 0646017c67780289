"""The queue's columns fill the terminal and never more."""

from __future__ import annotations

from dataclasses import replace

import pytest

from marlaas.app.lists.queue_lines import Arrangement, arrange
from marlaas.app.reading.sqlite_reader import SqliteReader
from marlaas.app.widgets.queue.columns import NARROW, Course, cell_text, cells, layout

from ..filling import Filling


def test_columns_fit_at_every_width() -> None:
    for width in range(1, 401):
        assert cells(layout(width)) <= max(width - 4, cells(NARROW)), width


def test_names_grow_with_the_terminal() -> None:
    assert {c.name: c.width for c in layout(100)}["task"] > {c.name: c.width for c in layout(80)}["task"]


@pytest.mark.parametrize(("steps", "text"), [(60, "7/60"), (400_000, "0 %")])
def test_steps_that_have_no_room_are_a_share(filling: Filling, steps: int, text: str) -> None:
    filling.task("running", made=7)
    with SqliteReader(filling.path) as reader:
        row = replace(reader.tasks()[0], steps=steps)
    column = next(column for column in NARROW if column.name == "step")
    assert cell_text(arrange([row], Arrangement())[0], Course(), False, column) == text
