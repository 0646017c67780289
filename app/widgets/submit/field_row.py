"""One key of the form: its name, what was typed, what is allowed or was chosen, and below it what is wrong."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Horizontal
from textual.content import Content
from textual.events import DescendantBlur, DescendantFocus
from textual.message import Message
from textual.widget import Widget
from textual.widgets import Input, OptionList, Static

from ...form.choices import BAD, DOUBTFUL, Choice, chosen, fitting, taken
from ...form.fields import AGENTS, FormField
from ...words.format import line, plain
from .choice_list import ChoiceList

LONGEST = 4000
"""Most characters of a field; a paste of megabytes is refused."""
Choices = Callable[[FormField], Sequence[Choice]]
"""What may be chosen in a field as the form stands now."""
_STYLES = {BAD: "$text-error", DOUBTFUL: "$text-warning"}


class FieldRow(Widget):
    """A field; sends ``Typed`` with every letter and ``Visited`` when the cursor comes to it.

    Where values can be chosen, typing opens a list of those that fit. An empty field whose choices say something of
    themselves opens it at once.
    """

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("down", "move(1)", show=False, id="submit.choose_next"),
        Binding("up", "move(-1)", show=False, id="submit.choose_previous"),
        Binding("escape", "close", show=False, id="submit.choose_nothing"),
        Binding("ctrl+@,ctrl+space", "list", "list all", show=False, id="submit.list"),  # terminals send either
    ]
    DEFAULT_CSS = """
    FieldRow { height: auto; }
    FieldRow Horizontal { height: auto; }
    FieldRow .name { width: 20; }
    FieldRow Input { width: 26; }
    FieldRow .allowed { width: 1fr; height: auto; padding-left: 1; color: $text-muted; }
    FieldRow .-told { height: 1; text-wrap: nowrap; text-overflow: ellipsis; }
    FieldRow .problem { height: auto; padding-left: 2; color: $text-error; display: none; }
    FieldRow.-wrong .problem { display: block; }
    FieldRow.-choosing .problem { display: none; }
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

    def __init__(self, field: FormField, text: str, choices: Choices) -> None:
        super().__init__()
        self.field = field
        self._text = _cleaned(text)
        self._choices = choices
        self._taken = ""
        """The text that a choice has left: it is no wish to choose again."""

    def compose(self) -> ComposeResult:
        """Lay out a line, and one more where something is wrong."""
        with Horizontal():
            yield Static(Content(line(self.field.name, 19)), classes="name")
            yield Input(
                self._text,
                placeholder=line(self.field.default, 40),
                max_length=LONGEST,
                select_on_focus=False,
                compact=True,
            )
            yield Static(self._hint(), classes="allowed -told" if self._choices(self.field) else "allowed")
        yield ChoiceList()
        yield Static(classes="problem")

    def tell(self, problem: str, missing: bool) -> None:
        """Show what is wrong with the field; empty for nothing."""
        if self.has_class("-wrong") or problem:
            for below in self.query(".problem").results(Static):  # none while it is being taken away
                below.update(Content(plain(problem)))
        self.set_class(bool(problem), "-wrong")
        self.set_class(missing, "-missing")

    def _hint(self) -> Content:
        """What the chosen value is, or what is allowed."""
        choices = self._choices(self.field)
        found = chosen(choices, self._text) if self._text else None
        if found is not None and found.note:
            return Content.styled(line(found.note, 120), _STYLES.get(found.standing, ""))
        if any(choice.note for choice in choices):
            return Content(f"{len(choices)} to choose from" if len(choices) > 1 else "1 to choose")
        return Content(line(self.field.allowed or ", ".join(choice.value for choice in choices), 120))

    def on_input_changed(self, event: Input.Changed) -> None:
        """Report every change, without characters that a terminal would obey."""
        event.stop()
        if (cleaned := _cleaned(event.value)) != event.value:
            event.input.value = cleaned  # causes another change
            return
        self._text = cleaned
        if choices := self._choices(self.field):
            self.query_one(".allowed", Static).update(self._hint())
            if event.input.has_focus and cleaned != self._taken:
                self._open(choices)
        self._taken = ""
        self.post_message(self.Typed(self.field.key, cleaned))

    # Choosing.

    @property
    def _strict(self) -> bool:
        """Whether nothing but a choice makes sense."""
        field = self.field
        return bool(field.choices) or field.kind == "bool" or field.table == AGENTS or field.name == "environment"

    def _open(self, choices: Sequence[Choice], typed: str | None = None) -> None:
        typed = self._text if typed is None else typed
        fit = () if chosen(choices, typed) else fitting(choices, typed)
        listed = self.query_one(ChoiceList)
        listed.show(fit, first=self._strict and bool(typed))
        self.set_class(listed.is_open, "-choosing")  # what is wrong is said once nobody chooses any more

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Leave the arrows and esc to the form while no list is open."""
        if action in ("move", "close"):
            return self.is_mounted and self.query_one(ChoiceList).is_open
        return action != "list" or bool(self._choices(self.field))

    def action_move(self, by: int) -> None:
        """Go through the list, and beyond its ends to the next field."""
        if not self.query_one(ChoiceList).move(by):
            self.screen.focus_next() if by > 0 else self.screen.focus_previous()

    def action_close(self) -> None:
        """Close the list; the text stays."""
        self.query_one(ChoiceList).close()
        self.remove_class("-choosing")

    def action_list(self) -> None:
        """List all choices, whatever was typed."""
        self._open(self._choices(self.field), "")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Take the choice that was clicked."""
        event.stop()
        self._take()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Take the choice under the cursor and go on to the next field on enter; nothing is submitted."""
        event.stop()
        self._take()
        self.screen.focus_next()

    def _take(self) -> None:
        listed = self.query_one(ChoiceList)
        if choice := listed.choice:
            field = self.query_one(Input)
            self._taken = field.value = taken(self._text, choice)
            field.cursor_position = len(field.value)
        self.action_close()

    def on_descendant_focus(self, event: DescendantFocus) -> None:
        """Report that the cursor is here."""
        self.post_message(self.Visited(self.field))
        choices = self._choices(self.field)
        if not self._text and any(choice.note for choice in choices):
            self._open(choices)

    def on_descendant_blur(self, event: DescendantBlur) -> None:
        """Close the list of a field that was left."""
        self.action_close()


def _cleaned(text: str) -> str:
    return plain(text).replace("\n", " ")
