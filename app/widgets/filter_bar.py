"""A line to type a filter into, above a list. It opens with /, filters while one types, and goes with esc."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.message import Message
from textual.widgets import Input, Static

from ..words.format import line

LONGEST = 300
"""Most characters: nobody types more, and somebody may paste a megabyte."""


class FilterLine(Input):
    """What is typed; it names enter itself, because a text's own key for it would hide the one of the bar."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("enter", "submit", "to the list", id="filter.leave"),
        Binding("down", "submit", "to the list", show=False, id="filter.down"),
    ]


class FilterBar(Horizontal):
    """Hidden while it is empty and nobody types."""

    @dataclass
    class Changed(Message):
        """The filter has changed."""

        text: str

    @dataclass
    class Left(Message):
        """The person is done typing: the list gets the keys again."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape", "clear", "clear filter", id="filter.clear"),
    ]
    DEFAULT_CSS = """
    FilterBar { height: 1; padding: 0 1; display: none; background: $surface; }
    FilterBar.-open { display: block; }
    FilterBar Input { width: 1fr; height: 1; border: none; padding: 0; background: $surface; }
    FilterBar .prompt { width: 2; color: $text-accent; }
    FilterBar #told { width: auto; max-width: 60%; color: $text-muted; }
    """

    def __init__(self, hint: str) -> None:
        """``hint`` is shown in the empty line: what can be typed."""
        super().__init__()
        self._hint = hint

    def compose(self) -> ComposeResult:
        """Lay out a prompt, the text, and a place for the result."""
        yield Static("/", classes="prompt", markup=False)
        yield FilterLine(placeholder=self._hint, max_length=LONGEST, select_on_focus=False, compact=True)
        yield Static("", id="told", markup=False)

    @property
    def text(self) -> str:
        """What was typed."""
        return self.query_one(Input).value

    def open(self) -> None:
        """Show the line and focus it at once, because the next letters may be on their way."""
        self.add_class("-open")
        self.screen.set_focus(self.query_one(Input))

    def tell(self, text: str, bad: bool = False) -> None:
        """Show what the filter found, or what is wrong with it."""
        self.query_one("#told", Static).update(Content.styled(f" {line(text, 200)}", "$text-error" if bad else ""))

    def write(self, text: str) -> None:
        """Set the filter, as if it had been typed."""
        self.query_one(Input).value = text
        self.set_class(bool(text), "-open")

    def clear(self) -> None:
        """Remove the filter."""
        self.query_one(Input).value = ""
        self.remove_class("-open")

    def action_clear(self) -> None:
        """Remove the filter, and go back to the list."""
        self.clear()
        self.post_message(self.Left())

    def on_input_changed(self, event: Input.Changed) -> None:
        """Report every letter."""
        event.stop()
        self.post_message(self.Changed(event.value))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go back to the list, which stays filtered."""
        event.stop()
        if not self.text:
            self.remove_class("-open")
        self.post_message(self.Left())
