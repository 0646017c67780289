"""One environment in words: state and error, parameters, findings, how its episodes end, and what was asked for."""

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

from ...cli.env_rows import STATES, bounds, place_of
from ...findings import spoken
from ...format import ago, line, plain, share
from .table import state_words, used_by

_LEVELS = {"error": "$text-error", "warning": "$text-warning", "note": ""}


@dataclass(frozen=True)
class Asked:
    """What a person wanted to see of an environment: its first prompts, or what its checks found."""

    title: str
    lines: tuple[str, ...] = ()
    """Safe text."""


class EnvironmentDetail(VerticalScroll, can_focus=True):
    """Reads from top to bottom: what is wrong comes first."""

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
    lines: list[Content] = [
        Content.assemble((state_words(row), "bold"), f": {STATES.get(row.state, 'see the log')}"),
    ]
    if row.message:
        lines.append(Content.styled(line(f"{row.message}{place_of(row)}", 600), "$text-error"))
    if asked is not None:
        lines += [Content(""), Content.styled(line(asked.title, 100), "bold"), *map(Content, asked.lines)]
    lines += [Content(""), *(Content(text) for text in plain(row.description).strip().split("\n")[:12])]
    lines.append(_pair("version", f"{line(row.version, 20)}, {line(row.path, 200)}"))
    for number, parameter in enumerate(row.parameters):
        lines.append(_pair("" if number else "parameters", _parameter(parameter)))
    if row.checked is None:
        lines.append(_pair("checks", "not checked yet; c checks it"))
    for number, finding in enumerate(row.findings):
        label = "" if number else "checks"
        lines.append(_pair(label, spoken(finding), _LEVELS.get(finding.level, "")))
    if row.checked is not None:
        done = f"done {ago(row.checked, now)}"
        lines.append(_pair("" if row.findings else "checks", done if row.findings else f"nothing wrong; {done}"))
    if use.episodes:
        ends = ", ".join(f"{count} {line(status, 12)}" for status, count in sorted(use.statuses.items()))
        lines.append(_pair("episodes", f"of the newest {use.episodes}: {ends}; {share(use.failed)} failed"))
    users = used_by(row, tasks)
    if users:
        named = ", ".join(f"{task.id} {line(task.name, 24)}" for task in users[:8])
        lines.append(_pair("used by", named + (f" and {len(users) - 8} more" if len(users) > 8 else "")))
    return Content("\n").join(lines)


def _parameter(parameter: dict[str, Any]) -> str:
    words = [str(parameter.get("type"))]
    words += [bounds(parameter)] if bounds(parameter) else []
    words += ["required" if parameter.get("required") else f"default {parameter.get('default')!r}"]
    return line(f"{parameter.get('name')}: {', '.join(words)}", 200)


def _pair(label: str, text: str, style: str = "") -> Content:
    return Content.assemble((f"{label:<12} ", "$text-muted"), (text, style))
