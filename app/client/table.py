"""Tasks as a tuple that a notebook shows as a table, in HTML with all foreign text escaped."""

from __future__ import annotations

from html import escape

from marlaas.engine.store import TaskRow

from ..words.format import line, score
from ..words.held_out import with_error
from ..words.tasks import queue_order, short_name, state_word

SHOWN = 200
"""Tasks in a notebook's table; of more only the number is given."""
CELLS = 80
"""Characters of a text."""


class Tasks(tuple[TaskRow, ...]):
    """Rows of tasks, oldest first."""

    def _repr_html_(self) -> str:
        """The queue as HTML for notebooks, in the order of ``marlaas list``."""
        headers = ("id", "tenant", "task", "environment", "state", "step", "reward", "held-out", "reason")
        rows = sorted(self, key=queue_order)
        more = f"<p>and {len(rows) - SHOWN:,} more</p>" if len(rows) > SHOWN else ""
        return f"<table>{_row('th', headers)}{''.join(_row('td', _cells(task)) for task in rows[:SHOWN])}</table>{more}"


def _cells(task: TaskRow) -> tuple[str, ...]:
    return (
        str(task.id),
        line(task.tenant, CELLS),
        short_name(task, CELLS),
        line(task.environment, CELLS),
        state_word(task.state),
        f"{task.step}/{task.steps}",
        score(task.reward),
        with_error(task.score, task.basis),
        line(task.reason, 2 * CELLS),
    )


def _row(tag: str, cells: tuple[str, ...]) -> str:
    return f"<tr>{''.join(f'<{tag}>{escape(cell)}</{tag}>' for cell in cells)}</tr>"
