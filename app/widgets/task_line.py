"""A task in a few lines: its tenant and name, then its numbers, or why it waits or has ended, or what is wrong."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store import PaceRow, TaskRow

from ..words.format import bar, cells, count, duration, line, score
from ..words.held_out import held_out
from ..words.learning import state_text
from ..words.lost import lost_words
from ..words.metrics import value_text
from ..words.pace import is_rough, left_text, seconds_left
from ..words.tasks import remedy, shown_reason

_REASON_LINES = 3
_RAGGED = 8
"""Cells of a line that wrapping at words may leave empty."""


class TaskLine(Widget):
    """What the table has no room for, and the head of a task's own view. Grows with a long reason."""

    DEFAULT_CSS = """
    TaskLine { height: 2; padding: 0 1; box-sizing: content-box; }
    """

    row: reactive[TaskRow | None] = reactive(None)
    pace: reactive[PaceRow | None] = reactive(None)
    """The speed of its last steps, from which the time left is computed."""
    serving: reactive[bool] = reactive(True)
    """Whether an engine works on the tasks."""
    policy: reactive[str] = reactive("")
    """Which of its policies is meant, in words."""
    brief: reactive[bool] = reactive(False)
    """Whether its numbers are left out, where they stand below."""

    def watch_row(self) -> None:
        """Make room for another reason or warning; other numbers need none."""
        room = max(1, self.content_size.width)
        reason, notice, _ = self._said()
        height = 1 + max(0 if self.brief else 1, _lines(reason, room)) + _lines(notice, room)
        if self.styles.height is None or self.styles.height.value != height:
            self.styles.height = height

    def watch_serving(self) -> None:
        """Make room for another reason."""
        self.watch_row()

    def watch_brief(self) -> None:
        """Give the line of numbers away, or take it back."""
        self.watch_row()

    def on_resize(self) -> None:
        """Make room for the reason at the new width."""
        self.watch_row()

    def _said(self) -> tuple[str, str, str]:
        """Why the task waits or has ended; what is wrong, or what to do about it; and the style of the former."""
        task = self.row
        if task is None:
            return "", "", ""
        reason = shown_reason(task, self.serving)
        if task.state == "blocked":
            return reason, remedy(task), "$text-error"
        known = (lost_words(task), "" if reason else task.warning)
        return reason, " ".join(filter(None, known)), "$text-muted"

    def render(self) -> Content:
        """The lines."""
        task = self.row
        if task is None:
            return Content("")
        width = self.content_size.width
        numbers = [
            f"reward {score(task.reward)}",
            f"held-out {held_out(task.score, task.basis)}",
            f"staleness {value_text('staleness', task.staleness)}",
            f"{count(task.tokens)} tokens",
            duration(task.seconds),
        ]
        state = f"{state_text(task, self.serving)}  {bar(task.step, task.steps, 10)} {task.step}/{task.steps}"
        left = seconds_left(task, self.pace)
        state += "" if left is None else f"  {left_text(left, is_rough(self.pace))} left"
        whose = f"{task.name} · {self.policy}" if self.policy else task.name
        name = line(f"{task.id}  {task.tenant} / {whose}  ({task.environment})", max(0, width - cells(state) - 2))
        gap = " " * max(1, width - cells(name) - cells(state))
        reason, notice, style = self._said()
        below = line(reason, _REASON_LINES * width) if reason else line(" · ".join(numbers), width)
        parts: list[str | tuple[str, str]] = [(name, "bold"), gap, state]
        parts += ["\n", (below, style)] if reason or not self.brief else []
        if notice:
            parts += ["\n", (line(notice, _REASON_LINES * width), "$text-warning")]
        return Content.assemble(*parts)


def _lines(sentence: str, room: int) -> int:
    """Lines that a sentence takes, at most ``_REASON_LINES``."""
    shown = line(sentence, _REASON_LINES * room)
    return min(_REASON_LINES, -(-cells(shown) // max(1, room - _RAGGED)))
