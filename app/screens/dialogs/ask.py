"""A question with a line of text as its answer."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.widgets import Input, Label

from .dialog import Dialog


class Ask(Dialog[str]):
    """Answers with what was typed; with an empty text where the person left."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("escape", "leave", "close", key_display="esc", id="ask.leave")]
    DEFAULT_CSS = "Ask Label { width: 100%; margin-bottom: 1; }"

    def __init__(self, question: str, text: str = "", enter: str = "done") -> None:
        """``text`` is the answer to begin with; ``enter`` says what giving it does."""
        super().__init__()
        self.ENTER = enter
        self._question = question
        self._text = text

    def content(self) -> ComposeResult:
        """Lay out question and line."""
        yield Label(self._question, markup=False)
        yield Input(self._text, max_length=1000, select_on_focus=False)

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer with the line."""
        event.stop()
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Leave without an answer."""
        self.dismiss("")
