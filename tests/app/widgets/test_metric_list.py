"""The list of metrics beside the chart: one line for each, whatever its value says."""

from __future__ import annotations

import pytest
from textual.app import App, ComposeResult

from marlaas.app.widgets.task_charts import MetricList, MetricRow
from marlaas.app.words.format import cells

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
