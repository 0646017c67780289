"""The view of logs: events and log files."""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import ContentSwitcher, Static

from marlaas.engine.errors import ConfigError
from marlaas.engine.store.queries.machine import LEVELS, EventFilter

from ...lists.filters import HINT, parse_log_filter, with_field
from ...operations.log_files import LONGEST, LogLine
from ...questions import LogsAnswer, LogsQuestion
from ...reading import opened
from ...text.format import EVENTS, excerpt, headline, line, nothing, pad
from ..context.snapshot import Snapshot
from ..widgets.bars import FilterBar
from ..widgets.tables import OpenReader, VirtualList
from .view import View

# The lines of a log, and the whole line under the cursor.

# The whole line under the cursor, wrapped; the list of lines has to cut it off.

_LINES = 500


class WholeLine(VerticalScroll, can_focus=True):
    """A text that scrolls when it has the focus."""

    DEFAULT_CSS = """
    WholeLine { height: auto; min-height: 3; max-height: 40%; padding: 0 1; border-top: solid $panel-lighten-2;
                display: none; }
    WholeLine.-open { display: block; }
    WholeLine:focus { border-top: solid $primary; }
    """
    ALLOW_MAXIMIZE = True

    def __init__(self) -> None:
        super().__init__()
        self._shown: LogLine | None = None
        self._text = Static("", markup=False)

    def compose(self) -> Any:
        """Lay out one text."""
        yield self._text

    def show(self, row: LogLine | None) -> None:
        """Show a line."""
        if row != self._shown:
            self._shown = row
            self._text.update(whole(row) if row is not None else "")
            self.scroll_home(animate=False)


def whole(row: LogLine) -> Content:
    """All that is known of a line. Its text is foreign."""
    when = "" if row.when is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.when))
    task = "" if row.task is None else f"task {row.task}"
    head = " · ".join(part for part in (when, row.level, row.kind and line(row.kind, 40), task) if part)
    style = LEVEL_STYLES.get(row.level, ("", "$text-muted"))[1]
    return Content.assemble((head, style), "\n", excerpt(row.text, LONGEST, _LINES))


# The lines of a log, newest at the bottom. While the cursor is on the last line, it follows new ones.

LEVEL_STYLES = {"info": ("·", "$text-muted"), "warning": ("!", "$text-warning"), "error": ("✗", "$text-error")}
DAY = 86400.0


class LogList(VirtualList[LogLine]):
    """The lines of events or of a file."""

    def __init__(self, open_reader: OpenReader, **options: Any) -> None:
        super().__init__(open_reader, follow="last", **options)
        self.now = 0.0
        """Seconds since 1970: lines older than a day show the day instead of the time."""

    @property
    def following(self) -> bool:
        """Whether the newest line is under the cursor."""
        return self.cursor >= self.count - 1

    def row_text(self, row: LogLine, width: int) -> Content:
        """Time, level, task, text."""
        mark, style = LEVEL_STYLES.get(row.level, ("?", ""))
        head = f"{clock(row.when, self.now)} " if row.when is not None else ""
        level = f"{mark} {pad(line(row.level, 7), 7)} "
        task = f"{pad(str(row.task) if row.task is not None else '', 4, right=True)} " if row.when is not None else ""
        room = max(0, width - len(head) - len(level) - len(task))
        text = (line(row.text, room), style if row.level != "info" else "")
        return Content.assemble((head, "$text-muted"), (level, style), (task, "$text-primary"), text)


def clock(when: float, now: float) -> str:
    """The local time in eight cells; the day if that is not the day of ``now``."""
    moment = time.localtime(when)
    return time.strftime("%H:%M:%S" if abs(now - when) < DAY else "%d %b  ", moment)


# The view of logs: what happened, event by event, and what the engine and its workers printed.

_HIGH = 40
"""From this height on the whole line is shown from the start."""


class LogsScreen(View):
    """A list, and the whole line under the cursor."""

    HELP = """What happened, newest at the bottom. The list follows while the cursor is on its last line; moving up
pauses that, G goes on.

/ filters: level:error task:17 tenant:bio some words.
L goes through the levels, T shows one tenant, o the selected task alone or all.
] and [ go through the engine's and the workers' own logs.
w shows a line as a whole, enter opens its task."""
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("slash", "filter", "filter", key_display="/", id="logs.filter"),
        Binding("right_square_bracket", "turn(1)", "other log", key_display="]", id="logs.next"),
        Binding("left_square_bracket", "turn(-1)", "previous log", key_display="[", show=False, id="logs.before"),
        Binding("o", "everything", "task/all", id="logs.all"),
        Binding("w", "whole", "whole", id="logs.whole"),
        Binding("L", "level", "level", show=False, id="logs.level"),
        Binding("T", "tenant", "tenant", show=False, id="logs.tenant"),
        Binding("f", "follow", "follow", show=False, id="logs.follow"),
        Binding("y", "copy_row", "copy", show=False, id="logs.copy"),
        Binding("Y", "copy_json", "copy JSON", show=False, id="logs.copy_json"),
    ]
    DEFAULT_CSS = """
    LogsScreen {
        #what { height: 1; padding: 0 1; color: $text-muted; }
        #nothing { padding: 1 2; color: $text-muted; }
        LogList { padding: 0 1; }
    }
    """
    AUTO_FOCUS = "LogList"

    def __init__(self) -> None:
        super().__init__()
        self._source = EVENTS
        self._files: tuple[str, ...] = ()
        self._filter = EventFilter()
        self._everything = False
        self._shown: tuple[LogsQuestion, object] | None = None

    def content(self) -> ComposeResult:
        """A head, the list or why it is empty, one whole line."""
        yield Static("", id="what", markup=False)
        yield FilterBar(HINT)
        with ContentSwitcher(initial="lines"):
            yield LogList(lambda: opened(self.marlaas.home), id="lines")
            yield Static("", id="nothing", markup=False)
        yield WholeLine()

    def on_mount(self) -> None:
        """Show the whole line, if there is room."""
        super().on_mount()
        self.query_one(WholeLine).set_class(self.app.size.height >= _HIGH, "-open")

    @property
    def only_task(self) -> int | None:
        """The task of the list, if it shows one task only."""
        if self._filter.task is not None or self._source != EVENTS:
            return self._filter.task
        return None if self._everything else self.marlaas.selected

    def question(self) -> LogsQuestion:
        """A question about one log, filtered."""
        return LogsQuestion(self.marlaas.home, self._source, replace(self._filter, task=self.only_task))

    def show_content(self, snapshot: Snapshot, answer: object) -> None:
        """Show lines that have come."""
        lines, question = self.query_one(LogList), self.question()
        lines.now = snapshot.now
        if isinstance(answer, LogsAnswer):
            self._files = answer.files
            if self._shown != (question, answer.listing):
                anew = self._shown is None or self._shown[0] != question
                self._shown = (question, answer.listing)
                lines.show(answer.listing, anew=anew)
            self._show_empty(lines.count == 0)
        elif snapshot.engine is None:
            self._show_empty(True)
        self._tell()

    def _show_empty(self, empty: bool) -> None:
        self.query_one(ContentSwitcher).current = "nothing" if empty else "lines"
        if empty:
            text = nothing(self._source, self.only_task, self._filter != EventFilter())
            self.query_one("#nothing", Static).update(text)

    def _tell(self) -> None:
        """Show which log this is, and whether it follows."""
        lines = self.query_one(LogList)
        place = None if lines.following else lines.cursor
        text = headline(self._source, self.only_task, lines.count, place, self._others())
        what = self.query_one("#what", Static)
        if what.content != text:
            what.update(text)
        self.query_one(WholeLine).show(lines.current_row)

    def _others(self) -> list[str]:
        """The logs that ] leads to, in order: all of them where the shown file is gone."""
        logs = [EVENTS, *self._files]
        if self._source not in logs:
            return logs
        place = logs.index(self._source)
        return [*logs[place + 1 :], *logs[:place]]

    # What the person chooses.

    def _again(self) -> None:
        self.ask_again()
        self.show_again()

    def why_not(self, action: str) -> str:
        """Why an action is refused: files know no tasks, and an empty list has nothing to copy."""
        if action.startswith("turn") and not self._others():
            return "There is no log file yet: the first engine writes them."
        if action == "everything":
            if self._source != EVENTS:
                return "Log files are not about tasks; / filters by words and level."
            if self._filter.task is not None:
                return "The filter names a task already."
            return "" if self.marlaas.selected is not None else "No task is selected: all are shown."
        if action == "tenant" and self._source != EVENTS:
            return "Log files are not about tenants; / filters by words and level."
        if action in ("copy_row", "copy_json") and self.is_mounted and not self.query_one(LogList).count:
            return "There is no line to copy."
        return super().why_not(action)

    def action_filter(self) -> None:
        """Open the filter."""
        self.query_one(FilterBar).open()

    def on_filter_bar_changed(self, message: FilterBar.Changed) -> None:
        """Filter with every letter; while the filter makes no sense yet, the list stays."""
        bar = self.query_one(FilterBar)
        try:
            self._filter = parse_log_filter(message.text)
        except ConfigError as error:
            bar.tell(error.message, bad=True)
            return
        unknown = self._source != EVENTS and (self._filter.task is not None or self._filter.tenant)
        bar.tell("log files have neither tasks nor tenants" if unknown else "")
        self._again()

    def on_filter_bar_left(self, message: FilterBar.Left) -> None:
        """Go back to the list."""
        self.query_one(LogList).focus()

    def action_level(self) -> None:
        """Show all lines, warnings and errors, or errors only."""
        levels = ("", *LEVELS[1:])
        place = levels.index(self._filter.level) if self._filter.level in levels else 0
        bar = self.query_one(FilterBar)
        bar.write(with_field(bar.text, "level", levels[(place + 1) % len(levels)]))

    def action_tenant(self) -> None:
        """Show only the tenant of the line under the cursor, or everybody."""
        bar, row = self.query_one(FilterBar), self.query_one(LogList).current_row
        task = self.marlaas.snapshot.task(row.task if row is not None else None)
        if self._filter.tenant or task is not None:
            name = "" if self._filter.tenant or task is None else line(task.tenant, 60).replace('"', "")
            bar.write(with_field(bar.text, "tenant", name))
        else:
            self.marlaas.say("This line is about no task, and so about no tenant.", bad=True)

    def action_everything(self) -> None:
        """Show only the selected task, or all tasks."""
        self._everything = not self._everything
        self._again()

    def action_turn(self, by: int) -> None:
        """Show the next log, or the one before."""
        self._source = self._others()[0 if by > 0 else -1]
        self._again()

    def action_whole(self) -> None:
        """Show or hide the whole line under the cursor."""
        self.query_one(WholeLine).toggle_class("-open")

    def action_follow(self) -> None:
        """Go to the newest line and follow it."""
        self.query_one(LogList).action_last()

    def action_back(self) -> None:
        """Remove the filter; without one, go back."""
        bar = self.query_one(FilterBar)
        if self.maximized is None and bar.text:
            bar.clear()
        else:
            super().action_back()

    def on_virtual_list_moved(self, message: VirtualList.Moved) -> None:
        """Show the line under the cursor."""
        self._tell()

    def on_virtual_list_arrived(self, message: VirtualList.Arrived) -> None:
        """Show the line, which has been read by now."""
        self._tell()

    def on_virtual_list_opened(self, message: VirtualList.Opened) -> None:
        """Open the task of the line."""
        row = self.query_one(LogList).current_row
        if row is not None and row.task is not None and self.marlaas.snapshot.task(row.task) is not None:
            self.marlaas.open_task(row.task)
        else:
            self.marlaas.say("This line is about no task.", bad=True)

    def action_copy_row(self) -> None:
        """Copy the line in words."""
        rows = self._chosen()
        self.marlaas.copy("\n".join(row.text for row in rows), _named(rows))

    def action_copy_json(self) -> None:
        """Copy all that is known of the line."""
        rows = self._chosen()
        found = [asdict(row) for row in rows]
        self.marlaas.copy(json.dumps(found[0] if len(found) == 1 else found, indent=2), _named(rows))

    def _chosen(self) -> list[LogLine]:
        """The marked lines that have been read; without marks the one under the cursor."""
        lines = self.query_one(LogList)
        chosen = set(lines.chosen)
        return [row for row in lines.rows() if row.id in chosen]


def _named(rows: list[LogLine]) -> str:
    return "The line" if len(rows) == 1 else f"{len(rows)} lines"
