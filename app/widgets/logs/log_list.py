"""The lines of a log, newest at the bottom. While the cursor is on the last line, it follows new ones."""

from __future__ import annotations

import time
from typing import Any

from textual.content import Content

from ...home.log_files import LogLine
from ...words.format import line, pad
from ..paged_view import OpenReader
from ..virtual_list import VirtualList

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
