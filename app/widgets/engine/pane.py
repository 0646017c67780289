"""A pane of lines under a title, in styled parts of text; unchanged lines are not drawn again."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from ...words.format import clip, line, pad

Part = tuple[str, str]
"""Text and its style; foreign text must have been cleaned."""
Line = tuple[Part, ...]


class Pane(Widget, can_focus=True):
    """As high as its lines; hidden without any."""

    DEFAULT_CSS = """
    Pane { height: auto; padding: 0 1; border-top: solid $panel-lighten-2; border-title-color: $text-muted; }
    Pane:focus { border-top: solid $primary; }
    """
    ALLOW_MAXIMIZE = True

    def __init__(self, title: str, *, id: str, can_focus: bool = True) -> None:
        super().__init__(id=id)
        self.can_focus = can_focus
        self.display = False
        self.border_title = title
        self._lines: Sequence[Line] = ()

    def show(self, lines: Sequence[Line], title: str | None = None) -> None:
        """Show these lines, perhaps under another title."""
        if title is not None and title != self.border_title:
            self.border_title = Content(title)
        self.display = bool(lines)
        if lines != self._lines:
            higher = len(lines) != len(self._lines)
            self._lines = lines
            self.refresh(layout=higher)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """A row for each line."""
        return len(self._lines)

    def render(self) -> Content:
        """The lines, cut at the edge."""
        width = self.content_size.width
        return Content("\n").join([Content.assemble(*parts).truncate(width, ellipsis=True) for parts in self._lines])


def table(headers: Sequence[str], rows: Sequence[Sequence[str]], widths: Sequence[int], room: int) -> list[Line]:
    """Aligned columns; a width below 0 aligns to the right, and the last column takes what is left of ``room``."""
    fixed = sum(abs(width) + 2 for width in widths[:-1])
    columns = [*widths[:-1], max(4, min(abs(widths[-1]), room - fixed)) * (-1 if widths[-1] < 0 else 1)]

    def cells(row: Sequence[str]) -> str:
        fitted = zip((line(text) for text in row), columns, strict=True)
        return "  ".join(pad(clip(text, abs(width)), abs(width), width < 0) for text, width in fitted).rstrip()

    return [((cells(headers), "$text-muted"),), *(((cells(row), ""),) for row in rows)]
