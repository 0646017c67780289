"""Charts and values of the task view."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, strategies as st
from textual.app import App, ComposeResult

from marlaas.app.chart.plot import Curve, Plot
from marlaas.app.text.format import BARS, cells
from marlaas.app.tui.widgets.task_charts import (
    MetricList,
    MetricRow,
    SmallChart,
    SmallMultiples,
    fitted,
    legend_names,
    trend,
)

# The list of metrics beside the chart: one line for each, whatever its value says.

WIDTH, HEIGHT = 45, 6


class Shown(App[None]):
    """The list alone."""

    def compose(self) -> ComposeResult:
        yield MetricList()


@pytest.mark.parametrize("value", ["0.97", "125 ms, 12.2 %", "1.4 of 2,000,000 rows", "x" * 60])
async def test_a_long_value_takes_of_its_sparkline(value: str) -> None:
    app = Shown()
    async with app.run_test(size=(WIDTH, HEIGHT)) as pilot:
        listed = app.query_one(MetricList)
        listed.rows = (MetricRow("a", "publish wait", value, [0.1, 0.5, 0.2] * 9), MetricRow("b", "gap", "1", [1.0]))
        await pilot.pause()
        lines = listed.render().plain.split("\n")
        assert len(lines) == 2 and all(cells(line) <= listed.content_size.width for line in lines)
        assert value in lines[0] or lines[0].endswith("…")


# The small charts: as many as fit, the chosen one among them, a click on one chooses it.

NAMES = ("reward", "held-out", "entropy", "length", "gap", "kl", "spread")


def charts(first: float = 0.0) -> tuple[SmallChart, ...]:
    return tuple(
        SmallChart(
            name, name, f"0.{place}", Plot([Curve(range(20), [first + step / 20 for step in range(20)])], end=20)
        )
        for place, name in enumerate(NAMES)
    )


class Alone(App[None]):
    """Nothing but the small charts."""

    def __init__(self) -> None:
        super().__init__()
        self.chosen: list[str] = []

    def compose(self) -> ComposeResult:
        yield SmallMultiples()

    def on_metric_list_chosen(self, message: MetricList.Chosen) -> None:
        self.chosen.append(message.name)
        self.query_one(SmallMultiples).chosen = message.name


def text(app: App[None]) -> list[str]:
    return [strip.text.rstrip() for strip in app.screen._compositor.render_strips()]


async def test_they_stand_in_a_grid_with_titles_and_values() -> None:
    async with Alone().run_test(size=(80, 12)) as pilot:
        small = pilot.app.query_one(SmallMultiples)
        small.charts, small.chosen = charts(), "entropy"
        await pilot.pause()
        lines = text(pilot.app)
        assert [name for name in NAMES if name in lines[0]] == ["reward", "held-out", "entropy"]
        assert [name for name in NAMES if name in lines[6]] == ["length", "gap", "kl"]
        assert "▸ entropy" in lines[0] and lines[0].count("0.") == 3
        assert any("⣀" in line or "⠤" in line or "⠉" in line for line in lines[1:6])


async def test_keys_and_clicks_choose_and_the_chosen_is_in_sight() -> None:
    app = Alone()
    async with app.run_test(size=(80, 12)) as pilot:
        small = app.query_one(SmallMultiples)
        small.charts, small.chosen = charts(), "reward"
        small.focus()
        await pilot.press("right", "down", "down")
        assert app.chosen == ["held-out", "gap", "spread"]
        assert any("▸ spread" in line for line in text(app)), "it is in the third line, which comes into sight"
        await pilot.click(SmallMultiples, offset=(30, 2))
        assert app.chosen[-1] == "gap"


async def test_no_room_and_no_charts_are_harmless() -> None:
    async with Alone().run_test(size=(10, 2)) as pilot:
        small = pilot.app.query_one(SmallMultiples)
        await pilot.press("right")
        small.charts = charts()
        await pilot.pause()
        small.charts = charts(1.0)
        await pilot.pause()
        assert len(text(pilot.app)) == 2


async def test_further_charts_fill_the_last_line() -> None:
    app = Alone()
    async with app.run_test(size=(80, 12)) as pilot:
        small = app.query_one(SmallMultiples)
        small.charts, small.further, small.chosen = charts()[:5], charts()[5:], "reward"
        await pilot.pause()
        lines = text(app)
        assert [name for name in NAMES if name in lines[6]] == ["length", "gap", "kl"], "and no more than that"
        await pilot.click(SmallMultiples, offset=(60, 7))
        assert app.chosen == ["kl"] and "▸ kl" in text(app)[6]
        small.focus()
        await pilot.press("right")
        assert app.chosen[-1] == "kl", "it is the last one"
        small.charts = charts()[:3]
        await pilot.pause()
        assert not any("kl" in line for line in text(app)), "a line that is full needs none"


# The small parts of the task view's panes.


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
    for room in range(14, 60):
        short = legend_names(names, room)
        assert sum(map(cells, short)) + 9 <= room and len(short) == 4
    assert legend_names(names, 10) == ["3", "4", "17", "5"], "the number of its task stays"
    sweep = [f"{task} words [lr=0.00{task}]" for task in range(117, 121)]
    assert legend_names(sweep, 30) == ["117", "118", "119", "120"]
    assert legend_names([], 0) == []


# A verdict in the lines that it has: cut between words, with the key that shows more behind it.

WORDS = "one two three four"


@pytest.mark.parametrize(
    ("width", "height", "more", "lines", "whole"),
    [
        (40, 1, "", ["one two three four"], True),
        (40, 1, "f: more", ["one two three four  f: more"], True),
        (20, 2, "f: more", ["one two three four", "f: more"], True),
        (20, 1, "f: more", ["one two …  f: more"], False),
        (10, 2, "", ["one two", "three four"], True),
        (9, 2, "", ["one two", "three …"], False),
    ],
)
def test_words_are_cut_between_two(width: int, height: int, more: str, lines: list[str], whole: bool) -> None:
    assert fitted(WORDS, more, width, height) == (lines, whole)


@given(st.text(max_size=60), st.integers(12, 40), st.integers(1, 3))
def test_it_never_takes_more_than_its_room(words: str, width: int, height: int) -> None:
    lines, _ = fitted(words, "f: more", width, height)
    assert len(lines) <= height and all(cells(line) <= width for line in lines) and lines[-1].endswith("f: more")
