"""A second line below a row: over all columns, cut where it must be, there and gone while the cursor stays."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st
from textual.app import App, ComposeResult

from marlaas.app.context.themes import DEFAULT, THEMES
from marlaas.app.lists.queue_lines import (
    Arrangement,
    Cell,
    Column,
    Course,
    Row,
    arrange,
    cell_text,
    layout,
    parts,
    second_line,
)
from marlaas.app.widgets.keyed_table import KeyedTable
from marlaas.app.words.format import cells
from marlaas.engine.store.rows import PolicyRow

from ..rows import task

COLUMNS = (Column("id", 4, right=True), Column("name", 8), Column("state", 9))
WIDTHS = [5, 9, 10]


@given(
    text=st.text(st.sampled_from("ab 名前é·"), max_size=40), widths=st.lists(st.integers(1, 9), min_size=1, max_size=6)
)
def test_pieces_fill_their_columns(text: str, widths: list[int]) -> None:
    found = parts(text, widths)
    assert [cells(piece) for piece in found] == widths
    if all(cells(character) < 2 for character in text) and cells(text) <= sum(widths):
        assert "".join(found).rstrip() == text.rstrip(), "nothing is lost where there is room"


def test_a_text_that_has_no_room_says_so() -> None:
    assert parts("sums.py:12: NameError", [5, 5]) == ["sums.", "py:1…"]


class Table(App[None]):
    """A table alone on a screen."""

    def __init__(self) -> None:
        super().__init__()
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = DEFAULT

    def compose(self) -> ComposeResult:
        yield KeyedTable()

    def lines(self) -> list[str]:
        return [strip.text.rstrip() for strip in self.screen._compositor.render_strips()]


def row(key: str, below: str = "") -> Row:
    return Row(key, tuple(Cell(text) for text in (key, f"task {key}", "queued")), Cell(below) if below else None)


async def test_second_lines_come_and_go_and_the_cursor_stays() -> None:
    app = Table()
    async with app.run_test(size=(40, 12)) as pilot:
        table = app.query_one(KeyedTable)

        async def show(*rows: Row) -> list[str]:
            table.show_rows(COLUMNS, rows)
            await pilot.pause()
            return [text.strip() for text in app.lines()[1:] if text.strip()]

        assert await show(row("1"), row("2"), row("3")) == [
            "1 task 1   queued",
            "2 task 2   queued",
            "3 task 3   queued",
        ]
        table.go_to("3")
        below = "sums.py:12: a cause"
        shown = await show(row("1"), row("2", below), row("3"))
        assert shown == ["1 task 1   queued", "2 task 2   queued", below, "3 task 3   queued"]
        assert table.key == "3"
        assert below.replace("12", "13") in await show(row("1"), row("2", below.replace("12", "13")), row("3"))
        assert await show(row("2"), row("3")) == ["2 task 2   queued", "3 task 3   queued"]
        assert table.key == "3"


@pytest.mark.parametrize("state", ["queued", "running", "paused", "failed"])
def test_only_blocked_tasks_have_a_second_line(state: str) -> None:
    policy = PolicyRow("a", ("agent",))
    rows = [task(1, state="blocked", reason="sums.py:3: it is broken.", policies=(policy,)), task(2, state=state)]
    own, of_policy, other = arrange(rows, Arrangement())
    assert second_line(own).strip() == "└ sums.py:3: it is broken."
    assert second_line(of_policy) == second_line(other) == ""


def test_a_task_that_paused_itself_says_why_in_its_row() -> None:
    why = "All 64 rewards were 1.00: it is solved."
    itself = task(1, state="paused", reason=why, reason_code="itself")
    person = task(2, state="paused", reason="paused by you", reason_code="person")
    own, other = arrange([itself, person], Arrangement())
    assert second_line(own).strip() == f"└ {why}" and second_line(other) == ""
    reason = next(column for column in layout(200) if column.name == "why")
    assert [cell_text(each, Course(), False, reason) for each in (own, other)] == ["", "paused by you"]
