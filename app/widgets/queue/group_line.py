"""A sweep or a tenant in two lines: the states of its tasks, and the range of their results."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store import TaskRow

from ...lists.queue_lines import spread
from ...words.format import cells, line, score
from ...words.tasks import best_of, shown_state, state_word


class GroupLine(Widget):
    """Shown in place of a task's own lines."""

    DEFAULT_CSS = """
    GroupLine { height: 2; padding: 0 1; box-sizing: content-box; }
    """

    tasks: reactive[Sequence[TaskRow]] = reactive(())
    serving: reactive[bool] = reactive(True)
    """Whether an engine works on the tasks."""

    def render(self) -> Content:
        """The lines."""
        width = self.content_size.width
        if not self.tasks:
            return Content("")
        first, second = group_texts(self.tasks, self.serving, width)
        return Content.assemble((line(first, width), "bold"), "\n", (line(second, width), "$text-muted"))


def group_texts(tasks: Sequence[TaskRow], serving: bool = True, width: int = 1000) -> tuple[str, str]:
    """Two lines about these tasks: their name and states, and their best score; the range where ``width`` has room."""
    states = Counter(shown_state(task, serving) for task in tasks)
    standing = ", ".join(f"{states[state]} {state_word(state)}" for state in sorted(states))
    title = f"{len(tasks)} tasks of {tasks[0].tenant}: {standing}"
    over = spread(task.best for task in tasks)
    if over is None:
        return title, "No held-out score yet. Enter unfolds."
    found = best_of([task for task in tasks if task.best is not None])
    each = f" · best of each: mean {score(over.mean)}, {score(over.low)} to {score(over.high)}"
    return title, found + each if cells(found + each) <= width else found
