"""The head of a task's view: numbers, a reason, and what people should know of its numbers."""

from __future__ import annotations

import pytest
from textual.app import App, ComposeResult

from marlaas.app.widgets.task_line import TaskLine

from ..rows import task

WARNING = "Some replies make the environment fail at grader.py, line 31."


class Alone(App[None]):
    """Nothing but the widget."""

    def compose(self) -> ComposeResult:
        yield TaskLine()


@pytest.mark.parametrize(
    ("values", "lines"),
    [({}, ["reward 0.1"]), ({"reason": "paused"}, ["paused"]), ({"warning": WARNING}, ["reward 0.1", WARNING])],
)
async def test_a_warning_stands_below_the_numbers(values: dict[str, str], lines: list[str]) -> None:
    app = Alone()
    async with app.run_test(size=(100, 20)) as pilot:
        head = app.query_one(TaskLine)
        head.row = task(1, **values)
        await pilot.pause()
        shown = str(head.render()).split("\n")[1:]
        assert len(shown) == len(lines) and all(text.startswith(line) for text, line in zip(shown, lines, strict=True))
        assert head.size.height == 1 + len(lines)
