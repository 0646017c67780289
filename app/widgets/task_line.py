"""A task in two lines: who and what, and why it waits or has ended."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store.rows import TaskRow

from ..format import bar, cells, count, duration, line, number, score
from ..views import state_word


class TaskLine(Widget):
    """What the table has no room for, and the head of a task's own screen."""

    DEFAULT_CSS = """
    TaskLine { height: 2; padding: 0 1; }
    """

    row: reactive[TaskRow | None] = reactive(None)

    def render(self) -> Content:
        """The two lines."""
        task = self.row
        if task is None:
            return Content("")
        width = self.content_size.width
        numbers = [
            f"reward {score(task.reward)}",
            f"held-out {score(task.score)}",
            f"staleness {number(task.staleness, 1)}",
            f"{count(task.tokens)} tokens",
            duration(task.seconds),
        ]
        state = f"{state_word(task.state)}  {bar(task.step, task.steps, 10)} {task.step}/{task.steps}"
        name = line(f"{task.id}  {task.tenant} / {task.name}  ({task.environment})", max(0, width - cells(state) - 2))
        gap = " " * max(1, width - cells(name) - cells(state))
        below = line(task.reason, width) if task.reason else line(" · ".join(numbers), width)
        return Content.assemble((name, "bold"), gap, state, "\n", (below, "$text-muted"))
