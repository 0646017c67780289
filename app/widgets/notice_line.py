"""Where notices are shown: in the place of the status line, so that they cover nothing of what one reads."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import Static

from ..context.notices import Notice
from .status_line import StatusLine


class NoticeLine(Static):
    """Above the line of keys; takes no room while there is nothing to tell. It grows with a long sentence, and what is
    above it makes room."""

    DEFAULT_CSS = """
    NoticeLine { display: none; dock: bottom; height: auto; max-height: 6; margin-bottom: 1; padding: 0 1;
                 background: $panel; }
    NoticeLine.-told { display: block; }
    """

    def __init__(self) -> None:
        super().__init__("", markup=False)

    def show(self, notices: Sequence[Notice]) -> None:
        """Show these, or nothing."""
        parts = [
            part
            for notice in notices
            for part in (("! " if notice.bad else "· ", _style(notice)), (notice.text, _style(notice)), "\n")
        ]
        self.update(Content.assemble(*parts[:-1]))
        self.set_class(bool(notices), "-told")
        for status in self.screen.query(StatusLine):
            status.display = not notices


def _style(notice: Notice) -> str:
    return "bold $text-warning" if notice.bad else ""
