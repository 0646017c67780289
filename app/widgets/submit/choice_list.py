"""The values that may be chosen in a field, in a list that lies below it while one types."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from ...form.choices import BAD, DOUBTFUL, GOOD, Choice
from ...words.format import cells, line, pad

_MARKS = {GOOD: ("● ", "$text-success"), DOUBTFUL: ("! ", "$text-warning"), BAD: ("✗ ", "$text-error"), "": ("", "")}
_WIDEST = 30
"""Most cells of a value, behind which its note begins."""


class ChoiceList(OptionList, can_focus=False):
    """Shows choices; the keys are the field's."""

    DEFAULT_CSS = """
    ChoiceList { display: none; overlay: screen; constrain: none inflect; width: 1fr; height: auto; max-height: 8;
                 padding: 0 1; border: none; background: $panel;
                 text-wrap: nowrap; text-overflow: ellipsis; }
    ChoiceList.-open { display: block; }
    """

    def __init__(self) -> None:
        super().__init__(markup=False, compact=True)
        self._choices: Sequence[Choice] = ()

    @property
    def choice(self) -> Choice | None:
        """The choice under the cursor, where the list is open and has a cursor."""
        place = self.highlighted
        return self._choices[place] if self.is_open and place is not None and place < len(self._choices) else None

    @property
    def is_open(self) -> bool:
        """Whether it is to be seen."""
        return self.has_class("-open")

    def show(self, choices: Sequence[Choice], first: bool) -> None:
        """Show these, with the cursor on the ``first`` or on none."""
        self._choices = choices
        width = min(_WIDEST, max((cells(choice.value) for choice in choices), default=0))
        self.clear_options()
        self.add_options([Option(_line(choice, width)) for choice in choices])
        self.highlighted = 0 if first and choices else None
        self.set_class(bool(choices), "-open")

    def close(self) -> None:
        """Hide it."""
        self.remove_class("-open")

    def move(self, by: int) -> bool:
        """Move the cursor; returns False at either end, where it cannot."""
        place = (-1 if self.highlighted is None else self.highlighted) + by
        if not 0 <= place < len(self._choices):
            return False
        self.highlighted = place
        return True


def _line(choice: Choice, width: int) -> Content:
    note = f"  {line(choice.note, 120)}" if choice.note else ""
    return Content.assemble(_MARKS[choice.standing], pad(line(choice.value, width), width), (note, "$text-muted"))
