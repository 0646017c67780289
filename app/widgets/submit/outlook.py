"""What the form stands for: the task file, what the tasks will take, and what the model will be asked."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Grid, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ...words.format import excerpt

CHARACTERS, LINES = 8000, 120
"""Most characters and lines of a task file that are shown."""
TAKES = ("time", "memory", "disk")
LATER = "when nothing is missing or wrong"


class Outlook(VerticalScroll):
    """Three parts one below the other; whoever made the lines has cleaned foreign text."""

    DEFAULT_CSS = """
    Outlook { padding: 0 1; }
    Outlook .head { color: $text-primary; text-style: bold; margin-top: 1; }
    Outlook .head:first-child { margin-top: 0; }
    Outlook Static { height: auto; }
    Outlook Grid { grid-size: 2; grid-columns: 8 1fr; grid-rows: auto; height: auto; }
    """

    def compose(self) -> ComposeResult:
        """Lay out heads and texts."""
        yield Static("task file", classes="head")
        yield Static(id="file")
        yield Static("what it takes", classes="head")
        yield Static(id="reason")
        with Grid():
            for what in TAKES:
                yield Static(what)
                yield Static(id=what)
        yield Static("what the model is asked", classes="head")
        yield Static(LATER, id="prompts")

    def show_file(self, text: str) -> None:
        """The task file as it would be saved."""
        self._show("file", excerpt(text, CHARACTERS, LINES).rstrip())

    def show_estimate(self, rows: Sequence[tuple[str, str]], reason: str = "") -> None:
        """Show (one of ``TAKES``, how much) for each, or why that is not known."""
        self.query_one(Grid).display = bool(rows)
        self.query_one("#reason").display = not rows
        self._show("reason", reason)
        for what, words in rows:
            self._show(what, words)

    def show_estimating(self) -> None:
        """Say that an estimate is on its way, unless an earlier one is shown."""
        if not self.query_one(Grid).display:
            self._show("reason", "is being estimated; where nobody has trained yet, some episodes are played first")

    def show_prompts(self, lines: Sequence[str]) -> None:
        """Show the prompts in safe lines."""
        self._show("prompts", "\n".join(lines))

    def _show(self, name: str, text: str) -> None:
        self.query_one(f"#{name}", Static).update(Content(text))
