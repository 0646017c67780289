"""The two lines of a sweep: which of its tasks is the best must be seen on a narrow screen."""

from __future__ import annotations

from pathlib import Path

import pytest

from marlaas.app.widgets.queue_table import group_texts
from marlaas.app.words.tasks import family_summaries, short_name, swept
from marlaas.engine.home.paths import Home
from marlaas.engine.store import TaskRow

from ..driving import driving
from ..filling import Filling
from ..rows import task

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
