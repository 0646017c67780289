"""The small charts: as many as fit, the chosen one among them, a click on one chooses it."""

from __future__ import annotations

from textual.app import App, ComposeResult

from marlaas.app.chart.plot import Curve, Plot
from marlaas.app.widgets.task_charts import MetricList, SmallChart, SmallMultiples

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
