"""The lines of a log, and the whole line under the cursor."""

from __future__ import annotations

import time
from typing import Any

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ..home.log_files import LONGEST, LogLine
from ..words.format import excerpt, line, pad
from .paged_view import OpenReader
from .virtual_list import VirtualList

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
    style = LEVELS.get(row.level, ("", "$text-muted"))[1]
    return Content.assemble((head, style), "\n", excerpt(row.text, LONGEST, _LINES))


# The lines of a log, newest at the bottom. While the cursor is on the last line, it follows new ones.

LEVELS = {"info": ("·", "$text-muted"), "warning": ("!", "$text-warning"), "error": ("✗", "$text-error")}
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
        mark, style = LEVELS.get(row.level, ("?", ""))
        head = f"{clock(row.when, self.now)} " if row.when is not None else ""
        level = f"{mark} {pad(line(row.level, 7), 7)} "
        task = f"{pad(str(row.task) if row.task is not None else '', 4, right=True)} " if row.when is not None else ""
        room = max(0, width - len(head) - len(level) - len(task))
        text = (line(row.text, room), style if row.level != "info" else "")
        return Content.assemble((head, "$text-muted"), (level, style), (task, "$text-primary"), text)


def clock(when: float, now: float) -> str:
    """The local time in eight cells; the day where that is not the day of ``now``."""
    moment = time.localtime(when)
    return time.strftime("%H:%M:%S" if abs(now - when) < DAY else "%d %b  ", moment)
