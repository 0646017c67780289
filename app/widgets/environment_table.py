"""The table of environments, and one of them in detail."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from marlaas.engine.spec import TOGETHER
from marlaas.engine.store import EnvironmentRow, EnvironmentUse, TaskRow

from ..home.environments.source_lines import Excerpt, Place
from ..lists.environment_order import MANY, short_names
from ..lists.queue_lines import Cell, Column, Row
from ..rollouts.document import wrapped
from ..words.environments.facts import facts, failed_share, mark, takes, trouble, trouble_words
from ..words.format import cells, line, plain
from .keyed_table import KeyedTable

# The table of environments: state, checks, tasks that use them, how their episodes end.

GLYPHS = {
    "ready": "●",
    "loading": "·",
    "broken": "✗",
    "stale": "!",
    "failing": "!",
    "hidden": "⊘",
    "waiting": "‖",
    "building": "·",
}
_STYLES = {
    "ready": "$text-success",
    "broken": "bold $text-error",
    "stale": "$text-warning",
    "failing": "bold $text-error",
    "waiting": "$text-warning",
    "hidden": "dim",
}
FEW = (
    Column("environment", 22),
    Column("state", 10),
    Column("tasks", 5, right=True),
    Column("failed", 6, right=True),
)
NARROW = (
    *FEW[:2],
    Column("version", 8),
    Column("checks", 6),
    *FEW[2:],
    Column("median", 6, right=True),
)
WIDE = (*NARROW[:5], Column("episodes", 8, right=True), *NARROW[5:], Column("p95", 7, right=True))
WIDEST = (Column("environment", 30), *WIDE[1:])
"""The columns of wide terminals; episodes are those of the last hour."""
WRONG = "what is wrong"
ENOUGH, MUCH = 30, 60
"""Cells of what is wrong with environments, before some other columns get any, and before all do."""


class EnvironmentsTable(KeyedTable):
    """A row for each environment."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._shown: tuple[Sequence[tuple[EnvironmentRow, EnvironmentUse]], Sequence[TaskRow]] = ((), ())

    def on_resize(self, event: Resize) -> None:
        """Fit the columns to the new width."""
        self.call_after_refresh(lambda: self.show(*self._shown))

    def show(self, rows: Sequence[tuple[EnvironmentRow, EnvironmentUse]], tasks: Sequence[TaskRow]) -> None:
        """Show these environments."""
        self._shown = rows, tasks
        room = (self.size.width or self.app.size.width) - self.gutter.width - self.styles.scrollbar_size_vertical
        names = short_names([row.name for row, _ in rows])
        longest = max((cells(line(name)) for name in names.values()), default=0)
        columns = columns_within(room, any(trouble_words(row, use) for row, use in rows), longest)
        self.show_rows(columns, [_row(columns, row, use, tasks, names[row.name]) for row, use in rows])


def columns_within(room: int, wrong: bool, longest: int) -> tuple[Column, ...]:
    """The columns for a width; with what is ``wrong`` in all the room that is left, if anything is.

    ``longest``: cells of the longest name.
    """
    if not wrong:
        return next((columns for columns in (WIDEST, WIDE) if _width(columns) <= room), NARROW)
    name = Column(FEW[0].name, max(len(FEW[0].name), min(FEW[0].width, longest)))
    sets = [((name, *columns[1:]), least) for columns, least in ((WIDE, MUCH), (NARROW, ENOUGH), (FEW, ENOUGH // 2))]
    for columns, least in sets:
        left = room - _width(columns) - 1
        if left >= least:
            return (*columns, Column(WRONG, left))
    return (name, *FEW[1:])


def _width(columns: Sequence[Column]) -> int:
    return sum(column.width + 1 for column in columns)


def used_by(row: EnvironmentRow, tasks: Sequence[TaskRow]) -> list[TaskRow]:
    """Unfinished tasks that name the environment, with or without its plugin."""
    names = {row.name, row.name.rpartition("/")[2]}
    return [task for task in tasks if task.unfinished and not names.isdisjoint(task.environment.split(TOGETHER))]


def state_words(row: EnvironmentRow) -> str:
    """The state as a glyph and a word."""
    return f"{GLYPHS.get(row.state, '?')} {line(row.state, 10)}"


def _row(
    columns: Sequence[Column], row: EnvironmentRow, use: EnvironmentUse, tasks: Sequence[TaskRow], name: str
) -> Row:
    """A row under a ``name``; its numbers are empty where nothing was played lately."""
    played = use.episodes > 0
    texts = {
        "environment": line(name, 30),
        "state": state_words(row),
        "version": line(row.version)[:8],
        "checks": mark(row),
        "tasks": str(len(used_by(row, tasks)) or ""),
        "failed": failed_share(use) if played else "",
        "episodes": f"{use.episodes:,}" if played else "",
        "median": takes(use.median) if use.statuses.get("ok") else "",
        "p95": takes(use.slow) if use.statuses.get("ok") else "",
        WRONG: trouble_words(row, use),
    }
    styles = {
        "state": _STYLES.get(row.state, ""),
        "checks": "$text-error" if texts["checks"].startswith("✗") else "",
        "failed": "$text-error" if use.failed > MANY else "",
        WRONG: "$text-error" if row.state in ("broken", "failing") or use.failed > MANY else "$text-warning",
    }
    return Row(row.name, tuple(Cell(texts[column.name], styles.get(column.name, "")) for column in columns))


# One environment in detail: requested findings or prompts, what is known of it, its author's description, its code.

LINES = 12
"""Most lines of a description."""
_LABEL = 13
"""Cells of the labels' column."""
_LEVELS = {"error": "$text-error", "warning": "$text-warning", "note": "", "code": "bold"}


@dataclass(frozen=True)
class Asked:
    """What a person asked to see of an environment: its first prompts, or the findings of its checks."""

    title: str
    lines: tuple[str, ...] = ()
    """Safe text."""
    checks: bool = False
    """Whether these are findings, which then stand nowhere else."""
    version: str = ""
    """The version that was served when they came: they are not about a later one."""


class EnvironmentDetail(VerticalScroll, can_focus=True):
    """The details as one text: what was asked for last and what is wrong come first."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("j", "scroll_down", "down", show=False, id="detail.down"),
        Binding("k", "scroll_up", "up", show=False, id="detail.up"),
    ]
    DEFAULT_CSS = """
    EnvironmentDetail { height: 1fr; padding: 0 1; scrollbar-gutter: stable; border-top: solid $panel-lighten-2; }
    EnvironmentDetail:focus { border-top: solid $primary; }
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self._text = Static("", markup=False)
        self._lines: list[DetailLine] = []
        self._drawn: tuple[list[DetailLine], int] = ([], 0)

    def compose(self) -> ComposeResult:
        """Lay out one text that scrolls."""
        yield self._text

    @property
    def text(self) -> str:
        """The shown text, in lines of any length."""
        return "\n".join(f"{one.label:<{_LABEL * one.labelled}}{one.text}" for one in self._lines)

    def show(
        self,
        row: EnvironmentRow | None,
        use: EnvironmentUse,
        tasks: Sequence[TaskRow],
        asked: Asked | None,
        now: float,
        code: Mapping[Place, str],
        defined: Excerpt | None = None,
    ) -> None:
        """Show an environment; ``code``: the lines of it that errors name; ``defined``: those that define it."""
        self.border_title = Content(line(row.name, 60) if row else "environments")  # a plain text is read as markup
        self._lines = detail_lines(row, use, tasks, asked, now, code, defined) if row else []
        self._draw()

    def on_resize(self, event: Resize) -> None:
        """Wrap the lines at the new width."""
        self._draw()

    def _draw(self) -> None:
        outer = self.outer_size.width or self.app.size.width
        width = outer - self.gutter.width - self.styles.scrollbar_size_vertical  # the scrollbar may come and go
        if self._drawn != (self._lines, width):
            self._drawn = self._lines, width
            self._text.update(Content("\n").join(content for one in self._lines for content in drawn(one, width)))


@dataclass(frozen=True)
class DetailLine:
    """A line before it is wrapped."""

    text: str
    """Safe text."""
    label: str = ""
    """The label before it, in a column of its own where lines have labels."""
    style: str = ""
    labelled: bool = False
    """Whether it is in the column right of the labels."""


def detail_lines(
    row: EnvironmentRow,
    use: EnvironmentUse,
    tasks: Sequence[TaskRow],
    asked: Asked | None,
    now: float,
    code: Mapping[Place, str],
    defined: Excerpt | None = None,
) -> list[DetailLine]:
    """All that is known of an environment. Every part of it is foreign text."""
    lines: list[DetailLine] = []
    if asked is not None:
        lines.append(DetailLine(line(asked.title, 100), style="bold"))
        if any(text.startswith("✗") for text in asked.lines):
            lines.append(DetailLine("E opens your editor on it", style="$text-muted"))
        lines += [*map(DetailLine, asked.lines), DetailLine("")]
    told = False
    for fact in facts(row, use, now, code, not (asked and asked.checks)):
        lines.append(_labelled(fact.label, fact.text, _LEVELS.get(fact.level, "")))
        if fact.level == "code" and not told:  # the first one is where E goes
            told = True
            lines.append(_labelled("", "E opens your editor there", "$text-muted"))
    if row.state == "waiting":
        lines.append(_labelled("libraries", "i shows them, and installs them if you agree"))
    users = used_by(row, tasks)
    if users:
        named = ", ".join(f"{task.id} {line(task.name, 24)}" for task in users[:8])
        lines.append(_labelled("used by", named + (f" and {len(users) - 8} more" if len(users) > 8 else "")))
    if description := plain(row.description).strip():
        lines += [DetailLine(""), *map(DetailLine, description.split("\n")[:LINES])]
    if defined is not None:
        of = trouble(row, use)
        lines += [DetailLine(""), *code_lines(defined, of.line if of and of.file.endswith(defined.file) else 0)]
    return lines


def code_lines(defined: Excerpt, wrong: int) -> list[DetailLine]:
    """Lines of code with their numbers under the name of their file; the one that is ``wrong`` stands out."""
    digits = len(str(defined.first + len(defined.lines)))
    shown = [DetailLine(line(defined.file, 60), style="bold")]
    for number, text in enumerate(defined.lines, defined.first):
        style = "bold $text-error" if number == wrong else ""
        shown.append(DetailLine(f"{number:>{digits}} │ {plain(text)}", style=style))
    return shown


def drawn(one: DetailLine, width: int) -> Iterator[Content]:
    """A line, wrapped to lines of at most ``width`` cells; what follows a label stays beside it."""
    if not one.labelled:
        yield Content.styled(one.text, one.style)
        return
    label = one.label
    for start, stop in wrapped(one.text, max(1, width - _LABEL)):
        yield Content.assemble((f"{label:<{_LABEL}}", "$text-muted"), (one.text[start:stop], one.style))
        label = ""


def _labelled(label: str, text: str, style: str = "") -> DetailLine:
    return DetailLine(text, label, style, labelled=True)
