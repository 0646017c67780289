"""The whole line under the cursor, wrapped; the list of lines has to cut it off."""

from __future__ import annotations

import time
from typing import Any

from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ...home.log_files import LONGEST, LogLine
from ...words.format import excerpt, line
from .log_list import LEVELS

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
