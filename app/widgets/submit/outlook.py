"""What the form amounts to: the task file, what the tasks will take, and what the model will be asked."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.widgets import Static

from ...format import excerpt, pad

CHARACTERS, LINES = 8000, 120
"""Of a task file that are shown."""


class Outlook(VerticalScroll):
    """Three parts below each other; foreign text is cleaned by whoever made the lines."""

    DEFAULT_CSS = """
    Outlook { padding: 0 1; }
    Outlook .head { color: $text-primary; text-style: bold; margin-top: 1; }
    Outlook .head:first-child { margin-top: 0; }
    Outlook Static { height: auto; }
    """

    def compose(self) -> ComposeResult:
        """Heads and texts."""
        for name, head in (("file", "task file"), ("takes", "what it takes"), ("prompts", "what the model is asked")):
            yield Static(head, classes="head")
            yield Static(id=name)

    def show_file(self, text: str) -> None:
        """The task file as it would be saved."""
        self._show("file", excerpt(text, CHARACTERS, LINES).rstrip())

    def show_estimate(self, rows: Sequence[tuple[str, str]], problem: str = "") -> None:
        """(what, how much) of each, or why it is not known."""
        self._show("takes", "\n".join(f"{pad(what, 7)} {words}" for what, words in rows) or problem)

    def show_prompts(self, lines: Sequence[str]) -> None:
        """Safe lines."""
        self._show("prompts", "\n".join(lines))

    def _show(self, name: str, text: str) -> None:
        self.query_one(f"#{name}", Static).update(Content(text))
