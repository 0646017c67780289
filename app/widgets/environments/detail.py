"""One environment in words: what somebody asked for, what is known of it, and how its author describes it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from marlaas.engine.store.environment_use import EnvironmentUse
from marlaas.engine.store.rows import EnvironmentRow, TaskRow

from ...environment_words import facts
from ...format import line, plain
from .table import used_by

LINES = 12
"""Of a description."""
_LEVELS = {"error": "$text-error", "warning": "$text-warning", "note": ""}


@dataclass(frozen=True)
class Asked:
    """What a person wanted to see of an environment: its first prompts, or what its checks found."""

    title: str
    lines: tuple[str, ...] = ()
    """Safe text."""


class EnvironmentDetail(VerticalScroll, can_focus=True):
    """Reads from top to bottom: what was asked for last and what is wrong come first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False, id="detail.down"),
        Binding("k", "scroll_up", "up", show=False, id="detail.up"),
    ]
    DEFAULT_CSS = """
    EnvironmentDetail { height: 1fr; padding: 0 1; border-top: solid $panel-lighten-2; }
    EnvironmentDetail:focus { border-top: solid $primary; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._text = Static("", markup=False)
        self._shown: Content | None = None

    def compose(self) -> ComposeResult:
        """One text that scrolls."""
        yield self._text

    @property
    def text(self) -> str:
        """What is shown."""
        return self._shown.plain if self._shown else ""

    def show(
        self, row: EnvironmentRow | None, use: EnvironmentUse, tasks: Sequence[TaskRow], asked: Asked | None, now: float
    ) -> None:
        """Another environment, or news of it."""
        self.border_title = Content(line(row.name, 60) if row else "environments")  # text is markup here
        text = detail_text(row, use, tasks, asked, now) if row else Content("")
        if self._shown is None or text.plain != self._shown.plain:
            self._shown = text
            self._text.update(text)


def detail_text(
    row: EnvironmentRow, use: EnvironmentUse, tasks: Sequence[TaskRow], asked: Asked | None, now: float
) -> Content:
    """All that is known of an environment. Every part of it is foreign text."""
    lines: list[Content] = []
    if asked is not None:
        lines += [Content.styled(line(asked.title, 100), "bold"), *map(Content, asked.lines), Content("")]
    lines += [_pair(fact.label, fact.text, _LEVELS.get(fact.level, "")) for fact in facts(row, use, now)]
    if row.state == "waiting":
        lines.append(_pair("libraries", "i shows them, and installs them if you agree"))
    users = used_by(row, tasks)
    if users:
        named = ", ".join(f"{task.id} {line(task.name, 24)}" for task in users[:8])
        lines.append(_pair("used by", named + (f" and {len(users) - 8} more" if len(users) > 8 else "")))
    if description := plain(row.description).strip():
        lines += [Content(""), *(Content(text) for text in description.split("\n")[:LINES])]
    return Content("\n").join(lines)


def _pair(label: str, text: str, style: str = "") -> Content:
    return Content.assemble((f"{label:<12} ", "$text-muted"), (text, style))
