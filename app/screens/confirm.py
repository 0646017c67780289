"""A question with yes or no; no is what happens unless the person says otherwise."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal, Vertical
from textual.screen import ModalScreen
from textual.widgets import Button, Label


class Confirm(ModalScreen[bool]):
    """Answers with True or False."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("y", "answer(True)", "yes", id="confirm.yes"),
        Binding("n,escape", "answer(False)", "no", id="confirm.no"),
        Binding("left,h,right,l", "app.focus_next", show=False, id="confirm.other"),
    ]
    DEFAULT_CSS = """
    Confirm { align: center middle; }
    Confirm > Vertical { width: 60; max-width: 90%; height: auto; padding: 1 2; background: $surface;
                         border: round $warning; }
    Confirm Label { width: 100%; margin-bottom: 1; }
    Confirm Horizontal { height: auto; align-horizontal: center; }
    Confirm Button { margin: 0 1; }
    """
    AUTO_FOCUS = "#no"

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        """Question and buttons."""
        with Vertical():
            yield Label(self._question, markup=False)
            with Horizontal():
                yield Button("No (n)", id="no", compact=True)
                yield Button("Yes (y)", id="yes", variant="error", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button was chosen."""
        self.dismiss(event.button.id == "yes")

    def action_answer(self, yes: bool) -> None:
        """A letter was chosen."""
        self.dismiss(yes)
