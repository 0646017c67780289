"""The versions as a list; keys act on the line under the cursor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content
from textual.widget import Widget

from marlaas.engine.store import KeptVersion

from ...lists.paging import Listing
from ...lists.version_lines import VersionLine, head, text
from ..paged_view import OpenReader
from ..virtual_list import GUTTER, VirtualList


class VersionHead(Widget):
    """The names of the list's columns, above it."""

    DEFAULT_CSS = """
    VersionHead { height: 1; padding: 0 3 0 1; color: $text-muted; }  /* the list's scrollbar is two cells */
    """

    def render(self) -> Content:
        """In the width that there is."""
        return Content(" " * GUTTER + head(max(1, self.content_size.width - GUTTER)))


class VersionList(VirtualList[VersionLine]):
    """All rows are in memory: few versions of a task are kept."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("enter", "open", "chat", id="adapters.chat")]

    def __init__(self, open_reader: OpenReader, **options: Any) -> None:
        super().__init__(open_reader, **options)
        self._now = 0.0
        self._sort = ""

    def show_lines(self, lines: Sequence[VersionLine], now: float, sort: str) -> None:
        """Show these lines; the cursor stays on its version."""
        self._now, self._sort = now, sort
        self.show(Listing.of({each.row.id: each for each in lines}))

    @property
    def current_version(self) -> KeptVersion | None:
        """The version under the cursor."""
        row = self.current_row
        return row.kept if row else None

    @property
    def marked(self) -> list[KeptVersion]:
        """The marked versions, in the list's order."""
        rows = (self.pages.row(place) for place in range(self.count))
        return [row.kept for row in rows if row and row.row.id in self.marks]

    def row_text(self, row: VersionLine, width: int) -> Content:
        """The line of a version; best and final ones stand out."""
        label = row.kept.label
        style = "$text-success" if "best" in label else "$text-primary" if "final" in label else ""
        return Content.styled(text(row, width, self._now, self._sort), style)
