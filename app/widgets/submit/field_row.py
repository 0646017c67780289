"""One key of the form: its name, what was typed, what is allowed, and below it what is wrong."""

from __future__ import annotations

from dataclasses import dataclass

from textual.app import ComposeResult
from textual.containers import Horizontal
from textual.content import Content
from textual.events import DescendantFocus
from textual.message import Message
from textual.suggester import SuggestFromList
from textual.widget import Widget
from textual.widgets import Input, Static

from ...form.fields import FormField
from ...words.format import line, plain

LONGEST = 4000
"""Most characters of a field; a paste of megabytes is refused."""


class FieldRow(Widget):
    """A field; sends ``Typed`` with every letter and ``Visited`` when the cursor comes to it."""

    DEFAULT_CSS = """
    FieldRow { height: auto; }
    FieldRow Horizontal { height: auto; }
    FieldRow .name { width: 20; }
    FieldRow Input { width: 26; }
    FieldRow .allowed { width: 1fr; height: auto; padding-left: 1; color: $text-muted; }
    FieldRow .problem { height: auto; padding-left: 2; color: $text-error; display: none; }
    FieldRow.-wrong .problem { display: block; }
    FieldRow.-wrong .name { color: $text-error; }
    FieldRow.-missing .name { color: $text-warning; }
    """

    @dataclass
    class Typed(Message):
        """The text has changed."""

        key: str
        text: str

    @dataclass
    class Visited(Message):
        """The cursor has come to the field."""

        field: FormField

    def __init__(self, field: FormField, text: str, suggestions: tuple[str, ...] = ()) -> None:
        super().__init__()
        self.field = field
        self._text = _cleaned(text)
        self._suggestions = suggestions or field.choices or (("true", "false") if field.kind == "bool" else ())

    def compose(self) -> ComposeResult:
        """Lay out a line, and one more where something is wrong."""
        with Horizontal():
            yield Static(Content(line(self.field.name, 19)), classes="name")
            yield Input(
                self._text,
                placeholder=line(self.field.default, 40),
                max_length=LONGEST,
                suggester=SuggestFromList([line(one) for one in self._suggestions]) if self._suggestions else None,
                select_on_focus=False,
                compact=True,
            )
            hint = self.field.allowed or ", ".join(line(one, 30) for one in self._suggestions)
            yield Static(Content(line(hint, 120)), classes="allowed")
        yield Static(classes="problem")

    def tell(self, problem: str, missing: bool) -> None:
        """Show what is wrong with the field; empty for nothing."""
        if self.has_class("-wrong") or problem:
            self.query_one(".problem", Static).update(Content(plain(problem)))
        self.set_class(bool(problem), "-wrong")
        self.set_class(missing, "-missing")

    def on_input_changed(self, event: Input.Changed) -> None:
        """Report every change, without characters that a terminal would obey."""
        event.stop()
        if (cleaned := _cleaned(event.value)) != event.value:
            event.input.value = cleaned  # causes another change
        else:
            self.post_message(self.Typed(self.field.key, cleaned))

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Go on to the next field on enter; nothing is submitted."""
        event.stop()
        self.screen.focus_next()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Report that the cursor is here."""
        self.post_message(self.Visited(self.field))


def _cleaned(text: str) -> str:
    return plain(text).replace("\n", " ")
