"""Before the first step: what is waited for stands in the place of axes without a curve, and nothing jumps after it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marlaas.app.tui.widgets.task_charts import MetricChart
from marlaas.engine.home.paths import Home

from ....seldom import often
from ...driving import driving
from ...filling import NOW, Filling

SIZES = often([(80, 24)], [(80, 24), (120, 36), (200, 50)])
AXIS = "┤"


@pytest.fixture
def begun(tmp_path: Path) -> Filling:
    """A home with a task that has half of its first step's episodes."""
    fill = Filling(tmp_path / "marlaas.db")
    fill.engine()
    fill.task(made=0)
    for table in ("metrics", "evals", "steps"):
        fill.execute(f"DELETE FROM {table}")
    config = json.dumps({"train": {"groups_per_step": 2, "group_size": 8}})
    fill.execute("UPDATE tasks SET config = ?, started = ?", config, NOW - 60)
    group = {"policy": 1, "split": "train", "number": 0, "instance": 1, "version": 0, "environment_version": "e"}
    fill.insert("groups", **group, state="complete", created=NOW)
    return fill


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("keys", [(), ("enter",)], ids=["queue", "task"])
async def test_what_is_waited_for_is_said(begun: Filling, size: tuple[int, int], keys: tuple[str, ...]) -> None:
    async with driving(Home(begun.path.parent), size) as driver:
        await driver.press(*keys)
        flat = " ".join(driver.text().replace("│", " ").split())
        assert "First step at about" in flat and "8 of 16 episodes" in flat
        assert AXIS not in driver.text()
        before = driver.app.screen.query_one(MetricChart).region
        begun.insert("metrics", policy=1, step=1, name="reward", value=0.5)
        begun.insert("steps", policy=1, number=1, version=1, incarnation=1, seconds=1.0, created=NOW)
        begun.execute("UPDATE policies SET step = 1")
        await driver.read()
        assert "First step" not in driver.text() and AXIS in driver.text()
        assert driver.app.screen.query_one(MetricChart).region == before


@pytest.mark.parametrize("size", SIZES)
async def test_an_unreadable_database_has_no_axes(tmp_path: Path, size: tuple[int, int]) -> None:
    (tmp_path / "marlaas.db").write_bytes(b"no database at all" * 100)
    async with driving(Home(tmp_path), size) as driver:
        assert AXIS not in driver.text()
        assert driver.text().count("not a database") >= 1
