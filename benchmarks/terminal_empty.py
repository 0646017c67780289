"""The least that a Textual program can be, to set start-up times against: one line of text."""

from __future__ import annotations

from textual.app import App, ComposeResult
from textual.widgets import Static

TEXT = "nothing-else"


class EmptyApp(App[None]):
    """Shows a word."""

    def compose(self) -> ComposeResult:
        """The word."""
        yield Static(TEXT)


if __name__ == "__main__":
    EmptyApp().run()
