"""The least that a Textual program can be, to set start-up times against: a word; with ``furnished`` as its argument
what any program begins with: a header, an empty table and a footer with that word.
"""

from __future__ import annotations

import sys
from typing import ClassVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import DataTable, Footer, Header, Static

TEXT = "nothing-else"


class EmptyApp(App[None]):
    """Shows a word."""

    def compose(self) -> ComposeResult:
        """The word."""
        yield Static(TEXT)


class FurnishedApp(App[None]):
    """Shows a word among furniture."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "quit", TEXT)]

    def compose(self) -> ComposeResult:
        """Header, table, footer."""
        yield Header()
        yield DataTable[str]()
        yield Footer()

    def on_mount(self) -> None:
        """A table has columns."""
        self.query_one(DataTable).add_columns("one", "two")


if __name__ == "__main__":
    (FurnishedApp if sys.argv[1:] == ["furnished"] else EmptyApp)().run()
