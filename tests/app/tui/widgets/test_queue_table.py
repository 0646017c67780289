"""The queue's table: second lines, lines of groups, the preview below."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, strategies as st
from textual.app import App, ComposeResult

from marlaas.app.lists.lines import (
    Arrangement,
    Cell,
    Column,
    Course,
    Row,
    arrange,
    cell_text,
    layout,
    lower_part,
    second_line,
)
from marlaas.app.text.format import cells
from marlaas.app.text.tasks import family_summaries, short_name, swept
from marlaas.app.tui.frame.looks import DEFAULT, THEMES
from marlaas.app.tui.screens.queue import group_texts
from marlaas.app.tui.widgets.conversation import rollout_lines
from marlaas.app.tui.widgets.tables import KeyedTable
from marlaas.engine.home.paths import Home
from marlaas.engine.store.rows import PolicyRow, TaskRow, TrajectoryRow, Turn

from ...driving import driving
from ...filling import HOSTILE, Filling
from ...rows import task

# The two lines of a sweep: which of its tasks is the best must be seen on a narrow screen.

RATES = ("1e-5", "3e-5", "1e-4")


def member(number: int, rate: str, **values: object) -> TaskRow:
    return task(number, name=f"words [learning_rate={rate}]", family="words", **values)


TASKS = [member(number, rate, best=number / 10) for number, rate in enumerate(RATES, 1)]


def test_the_best_comes_first_with_its_value() -> None:
    _, second = group_texts(TASKS)
    best = "best held-out 0.30: task 3, learning_rate=1e-4"
    assert second == f"{best} · best of each: mean 0.20, 0.10 to 0.30"
    assert group_texts(TASKS, width=60)[1] == best, "the range is left out before the best is cut"
    assert best in family_summaries(TASKS)[0]


def test_members_are_told_apart_where_there_is_little_room() -> None:
    assert swept(TASKS[2]) == "learning_rate=1e-4"
    assert short_name(TASKS[2], 40) == "words [learning_rate=1e-4]"
    assert (short_name(TASKS[2], 18), short_name(TASKS[2], 10)) == ("learning_rate=1e-4", "…rate=1e-4")
    lone = task(4, name="words [mine]")
    assert (swept(lone), short_name(lone, 8)) == ("", "words […")


@pytest.mark.parametrize("width", [80, 120, 200])
async def test_the_best_of_a_sweep_is_on_the_screen(tmp_path: Path, width: int) -> None:
    fill = Filling(tmp_path / "marlaas.db")
    fill.engine()
    for number, rate in enumerate(RATES, 1):
        fill.task(name=f"word problems [learning_rate={rate}]", made=8)
        fill.execute("UPDATE evals SET score = ? WHERE policy = ?", number / 10, number)
    fill.execute("UPDATE tasks SET family = 'word problems', created = 1")
    async with driving(Home(tmp_path), (width, 24)) as driver:
        assert "best held-out 0.30: task 3, learning_rate=1e-4" in driver.text()


# The queue's lower part: how lines are shared, and a rollout in any room.

TURNS = (Turn("user", "What is 17 + 25? " * 10), Turn("assistant", "It is forty-two. " * 10 + "So: 42"))


def rollout(*turns: Turn, reward: float | None = 1.0, failure: str = "") -> TrajectoryRow:
    return TrajectoryRow(1, 1, "train", 344, 2, "agent", "ok", reward, 0.5, 43, 42, "e1", 19, turns, {}, {}, failure)


def shown(row: TrajectoryRow, width: int, height: int) -> list[str]:
    return [line.plain for line in rollout_lines(row, width, height)]


@pytest.mark.parametrize("height", range(1, 80))
@pytest.mark.parametrize("wanted", [1, 5, 40, 500])
def test_the_lines_of_a_terminal_are_shared(height: int, wanted: int) -> None:
    room = lower_part(height, wanted)
    if room is None:
        assert height < 20
    else:
        table, below = room
        assert table + below == height - 7 and below >= 6 and table >= 6
        assert table >= min(wanted, 6) and (table <= max(6, wanted))


def test_few_tasks_leave_their_lines_to_the_lower_part() -> None:
    few, many = lower_part(36, 5), lower_part(36, 100)
    assert few is not None and many is not None and few[1] == 23 and many[0] == 18


def test_a_rollout_is_shown_with_its_reward() -> None:
    lines = shown(rollout(Turn("user", "17 + 25 = ?"), Turn("assistant", "42")), 40, 6)
    assert lines == ["newest rollout, group 344    reward 1.00", "user: 17 + 25 = ?", "assistant: 42"]


def test_a_long_turn_loses_its_middle() -> None:
    lines = shown(rollout(*TURNS), 30, 10)
    assert len(lines) <= 10 and lines[-1].endswith("So: 42") and lines[1].startswith("user: What is 17 + 25?")
    assert sum(line.startswith("…") for line in lines) == 2


def test_what_failed_says_why() -> None:
    lines = shown(rollout(*TURNS, reward=None, failure="the sum was no number"), 50, 8)
    assert lines[0].endswith("no reward") and lines[1] == "! the sum was no number"


@given(
    st.lists(st.builds(Turn, st.sampled_from(["user", "assistant", HOSTILE]), st.text(max_size=300)), max_size=5),
    st.integers(0, 60),
    st.integers(0, 20),
)
def test_any_rollout_fits_any_room(turns: list[Turn], width: int, height: int) -> None:
    lines = shown(rollout(*turns, Turn("tool", HOSTILE), failure=HOSTILE), width, height)
    assert len(lines) <= height
    if width >= 24:  # below, the reward alone may be wider
        assert all(cells(line) <= width for line in lines) and "\x1b" not in "".join(lines)


# A second line below a row: over all columns, cut where it must be, there and gone while the cursor stays.

COLUMNS = (Column("id", 4, right=True), Column("name", 8), Column("state", 9))


class Table(App[None]):
    """A table alone on a screen."""

    def __init__(self) -> None:
        super().__init__()
        for theme in THEMES:
            self.register_theme(theme)
        self.theme = DEFAULT
        self.opened: list[str] = []

    def compose(self) -> ComposeResult:
        yield KeyedTable()

    def on_virtual_list_opened(self, message: KeyedTable.Opened) -> None:
        self.opened.append(message.id)

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
        table.go("3")
        below = "sums.py:12: a cause"
        shown = await show(row("1"), row("2", below), row("3"))
        assert shown == ["1 task 1   queued", "2 task 2   queued", below, "3 task 3   queued"]
        assert table.key == "3"
        assert below.replace("12", "13") in await show(row("1"), row("2", below.replace("12", "13")), row("3"))
        assert await show(row("2"), row("3")) == ["2 task 2   queued", "3 task 3   queued"]
        assert table.key == "3"


async def test_a_click_on_the_current_row_opens_it() -> None:
    app = Table()
    async with app.run_test(size=(40, 12)) as pilot:
        table = app.query_one(KeyedTable)
        table.show_rows(COLUMNS, [row("1"), row("2"), row("3")])
        await pilot.click(KeyedTable, offset=(4, 2))
        assert table.key == "2" and not app.opened
        await pilot.pause(0.6)  # else it is a double click
        await pilot.click(KeyedTable, offset=(4, 2))
        await pilot.pause()
        assert app.opened == ["2"]
        await pilot.click(KeyedTable, offset=(4, 3), times=2)
        await pilot.pause()
        assert app.opened == ["2", "3"]


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
