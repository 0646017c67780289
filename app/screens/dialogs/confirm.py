"""A question with yes or no; the answer is no unless the person says yes."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Input, Label


class Confirm(ModalScreen[bool]):
    """Answers with True or False. What cannot be undone asks for a word to be typed; enter then means yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes", id="confirm.yes"),
        Binding("n", "answer(False)", "no", id="confirm.no"),
        Binding("escape", "answer(False)", "no", show=False, id="confirm.leave"),
        Binding("left,h,right,l", "app.focus_next", show=False, id="confirm.other"),
    ]
    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm > Vertical { width: 64; max-width: 90%; height: auto; padding: 1 2; background: $surface;
                         border: round $warning; }
    Confirm Label { width: 100%; margin-bottom: 1; }
    Confirm Input { margin-bottom: 1; }
    Confirm Horizontal { height: auto; align-horizontal: center; }
    Confirm Button { margin: 0 1; }
    """
    AUTO_FOCUS = "Input, #no"

    def __init__(self, question: str, typed: str = "") -> None:
        """``typed`` is the word to type for a yes; without it the key y is enough."""
        super().__init__()
        self._question = question
        self._typed = typed

    def compose(self) -> ComposeResult:
        """Lay out question and buttons."""
        with Vertical():
            yield Label(self._question, markup=False)
            if self._typed:
                yield Input(placeholder=f"type {self._typed} to say yes", max_length=40)
            with Horizontal():
                yield Button("No (n)" if not self._typed else "No (esc)", id="no", compact=True)
                yield Button("Yes" if self._typed else "Yes (y)", id="yes", variant="error", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer with the button that was chosen."""
        self.action_answer(event.button.id == "yes")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer yes if the word is right."""
        self.action_answer(True)

    def action_answer(self, yes: bool) -> None:
        """Answer; a yes counts only with the word that was asked for."""
        if yes and self._typed and self.query_one(Input).value.strip() != self._typed:
            self.query_one(Input).add_class("-invalid")
            return
        self.dismiss(yes)
