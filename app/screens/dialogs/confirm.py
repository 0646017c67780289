"""A question with yes or no; the answer is no unless the person says yes."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.widgets import Button, Input, Label

from .dialog import Dialog


class Confirm(Dialog[bool]):
    """Answers with True or False. What cannot be undone asks for a word to be typed; enter then means yes."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "say(True)", "yes", id="confirm.yes"),
        Binding("n", "say(False)", "no", id="confirm.no"),
        Binding("escape", "answer(False)", "close", key_display="esc", id="confirm.leave"),
        Binding("left,h,right,l", "app.focus_next", show=False, id="confirm.other"),
    ]
    DEFAULT_CSS = """
    Confirm > Vertical { border: round $warning; }
    Confirm Label { width: 100%; margin-bottom: 1; }
    Confirm Input { margin-bottom: 1; }
    Confirm Horizontal { height: auto; margin-bottom: 1; align-horizontal: center; }
    Confirm Button { margin: 0 1; }
    """
    AUTO_FOCUS = "Input, #no"

    def __init__(self, question: str, typed: str = "") -> None:
        """``typed`` is the word to type for a yes; without it the key y is enough."""
        super().__init__()
        self._question = question
        self._typed = typed
        self.ENTER = "yes" if typed else "choose"

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool:
        """Whether a key means something: y and n are letters where a word is asked for."""
        return action != "say" or not self._typed

    def content(self) -> ComposeResult:
        """Lay out question and buttons."""
        yield Label(self._question, markup=False)
        if self._typed:
            yield Input(placeholder=f"type {self._typed} to say yes", max_length=40)
        with Horizontal():
            yield Button("No", id="no", compact=True)
            yield Button("Yes", id="yes", variant="error", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Answer with the button that was chosen."""
        self.action_answer(event.button.id == "yes")

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Answer yes if the word is right."""
        self.action_answer(True)

    def action_say(self, yes: bool) -> None:
        """Answer by a letter."""
        self.action_answer(yes)

    def action_answer(self, yes: bool) -> None:
        """Answer; a yes counts only with the word that was asked for."""
        if yes and self._typed and self.query_one(Input).value.strip() != self._typed:
            self.query_one(Input).add_class("-invalid")
            return
        self.dismiss(yes)
