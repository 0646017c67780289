"""The view of logs: events, and output of the engine and its workers."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from functools import partial
from typing import Any, ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import ContentSwitcher, Static

from marlaas.engine.store.queries.machine import LEVELS, EventFilter

from ...lists.filters import HINT, parse_log_filter, with_field
from ...operations.log_files import LONGEST, LogLine
from ...questions import LogsAnswer, Question, logs
from ...reading import opened
from ...text.format import EVENTS, excerpt, headline, line, nothing, pad
from ..context.feed import Snapshot
from ..widgets.bars import FilterBar
from ..widgets.tables import VirtualList
from .view import View

LEVEL_STYLES = {"info": ("·", "$text-muted"), "warning": ("!", "$text-warning"), "error": ("✗", "$text-error")}


def whole(row: LogLine) -> Content:
    """A line in full. Its text is foreign."""
    when = "" if row.when is None else time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(row.when))
    task = "" if row.task is None else f"task {row.task}"
    head = " · ".join(part for part in (when, row.level, row.kind and line(row.kind, 40), task) if part)
    style = LEVEL_STYLES.get(row.level, ("", "$text-muted"))[1]
    return Content.assemble((head, style), "\n", excerpt(row.text, LONGEST, 500))


class LogList(VirtualList[LogLine]):
    """Events or a file's lines, newest at the bottom. On the last line, the cursor follows new ones."""

    now = 0.0
    """Seconds since 1970: lines older than a day show the day, not the time."""

    @property
    def following(self) -> bool:
        return self.cursor >= self.count - 1

    def row_text(self, row: LogLine, width: int, below: bool = False) -> Content:
        mark, style = LEVEL_STYLES.get(row.level, ("?", ""))
        head = task = ""
        if row.when is not None:
            pattern = "%H:%M:%S" if abs(self.now - row.when) < 86_400 else "%d %b  "
            head = f"{time.strftime(pattern, time.localtime(row.when))} "
            task = f"{pad(str(row.task) if row.task is not None else '', 4, right=True)} "
        level = f"{mark} {pad(line(row.level, 7), 7)} "
        room = max(0, width - len(head) - len(level) - len(task))
        text = (line(row.text, room), style if row.level != "info" else "")
        return Content.assemble((head, "$text-muted"), (level, style), (task, "$text-primary"), text)


class WholeLine(VerticalScroll, can_focus=True):
    """The current line in full."""

    ALLOW_MAXIMIZE = True


class LogsScreen(View):
    """A list, and the current line in full."""

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
        #whole { height: auto; min-height: 3; max-height: 40%; padding: 0 1; border-top: solid $panel-lighten-2;
                 display: none; }
        #whole.-open { display: block; }
        #whole:focus { border-top: solid $primary; }
    }
    """
    AUTO_FOCUS = LIST = "LogList"

    def __init__(self) -> None:
        super().__init__()
        self._source = EVENTS
        self._files: tuple[str, ...] = ()
        self._filter = EventFilter()
        self._everything = False
        self._shown: tuple[Question, object] | None = None
        self._whole: LogLine | None = None

    def content(self) -> ComposeResult:
        yield Static("", id="what", markup=False)
        yield FilterBar(HINT)
        with ContentSwitcher(initial="lines"):
            yield LogList(partial(opened, self.marlaas.home), follow="last", id="lines")
            yield Static("", id="nothing", markup=False)
        with WholeLine(id="whole"):
            yield Static("", id="text", markup=False)

    def on_mount(self) -> None:
        super().on_mount()
        self.query_one("#whole").set_class(self.app.size.height >= 40, "-open")

    @property
    def lines(self) -> LogList:
        return self.query_one(LogList)

    @property
    def only_task(self) -> int | None:
        if self._filter.task is not None or self._source != EVENTS:
            return self._filter.task
        return None if self._everything else self.marlaas.selected

    def question(self) -> Question:
        return Question(logs, (self.marlaas.home, self._source, replace(self._filter, task=self.only_task)))

    def show_content(self, snapshot: Snapshot, answer: Any) -> None:
        lines, question = self.lines, self.question()
        lines.now = snapshot.now
        if isinstance(answer, LogsAnswer):
            self._files = answer.files
            if self._shown != (question, answer.listing):
                anew = self._shown is None or self._shown[0] != question
                self._shown = (question, answer.listing)
                lines.show(answer.listing, anew=anew)
        if answer is not None or snapshot.engine is None:
            empty = answer is None or not lines.count
            self.query_one(ContentSwitcher).current = "nothing" if empty else "lines"
            if empty:
                text = nothing(self._source, self.only_task, self._filter != EventFilter())
                self.query_one("#nothing", Static).update(text)
        self._tell()

    def _tell(self) -> None:
        lines = self.lines
        place = None if lines.following else lines.cursor
        text = headline(self._source, self.only_task, lines.count, place, self._others())
        self.query_one("#what", Static).update(text)
        if lines.current_row != self._whole:
            self._whole = lines.current_row
            self.query_one("#text", Static).update(whole(self._whole) if self._whole is not None else "")
            self.query_one("#whole").scroll_home(animate=False)

    def _others(self) -> list[str]:
        """All if the shown file is gone."""
        sources = [EVENTS, *self._files]
        if self._source not in sources:
            return sources
        place = sources.index(self._source)
        return [*sources[place + 1 :], *sources[:place]]

    def why_not(self, action: str) -> str:
        """Files have no tasks; an empty list has nothing to copy."""
        match action:
            case "turn" | "turn(1)" | "turn(-1)" if not self._others():
                return "There is no log file yet: the first engine writes them."
            case "everything" if self._source != EVENTS:
                return "Log files are not about tasks; / filters by words and level."
            case "tenant" if self._source != EVENTS:
                return "Log files are not about tenants; / filters by words and level."
            case "everything" if self._filter.task is not None:
                return "The filter names a task already."
            case "everything" if self.marlaas.selected is None:
                return "No task is selected: all are shown."
            case "copy_row" | "copy_json" if self.is_mounted and not self.lines.count:
                return "There is no line to copy."
        return super().why_not(action)

    def filter(self, text: str) -> None:
        self._filter = parse_log_filter(text)
        unknown = self._source != EVENTS and (self._filter.task is not None or self._filter.tenant)
        self.query_one(FilterBar).tell("log files have neither tasks nor tenants" if unknown else "")
        self.renew()

    def action_level(self) -> None:
        levels = ("", *LEVELS[1:])
        place = levels.index(self._filter.level) if self._filter.level in levels else 0
        bar = self.query_one(FilterBar)
        bar.write(with_field(bar.text, "level", levels[(place + 1) % len(levels)]))

    def action_tenant(self) -> None:
        """Show only the current line's tenant, or all."""
        bar, row = self.query_one(FilterBar), self.lines.current_row
        task = self.marlaas.snapshot.task(row.task if row is not None else None)
        if self._filter.tenant or task is not None:
            name = "" if self._filter.tenant or task is None else line(task.tenant, 60).replace('"', "")
            bar.write(with_field(bar.text, "tenant", name))
        else:
            self.marlaas.say("This line is about no task, and so about no tenant.", bad=True)

    def action_everything(self) -> None:
        self._everything = not self._everything
        self.renew()

    def action_turn(self, by: int) -> None:
        self._source = self._others()[0 if by > 0 else -1]
        self.renew()

    def action_whole(self) -> None:
        self.query_one("#whole").toggle_class("-open")

    def action_follow(self) -> None:
        self.lines.action_move(self.lines.count)

    def action_back(self) -> None:
        bar = self.query_one(FilterBar)
        if self.maximized is None and bar.text:
            bar.write("")
        else:
            super().action_back()

    def on_virtual_list_moved(self) -> None:
        self._tell()

    on_virtual_list_arrived = on_virtual_list_moved

    def on_virtual_list_opened(self) -> None:
        row = self.lines.current_row
        if row is not None and row.task is not None and self.marlaas.snapshot.task(row.task) is not None:
            self.marlaas.open_task(row.task)
        else:
            self.marlaas.say("This line is about no task.", bad=True)

    def copied(self) -> tuple[str, Sequence[object], str]:
        """The marked and read lines, else the current one."""
        chosen = set(self.lines.chosen)
        rows = [row for row in self.lines.rows() if row.id in chosen]
        what = "The line" if len(rows) == 1 else f"{len(rows)} lines"
        return "\n".join(row.text for row in rows), [asdict(row) for row in rows], what
