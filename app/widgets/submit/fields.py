"""The left side of the form: what everybody sets, the environment's parameters, and all other tables, folded."""

from __future__ import annotations

from collections.abc import Mapping

from textual.containers import Vertical
from textual.widgets import Input

from ...form.checking import Checked
from ...form.fields import FIRST, FOLDED, FormField, task_fields
from ...form.form import Form
from .field_row import Choices, FieldRow
from .policies import Policies
from .section import Section

_AROUND = 5
"""Lines of the screen above and below: this may be asked before it is laid out."""
_USUAL = ("train", "sampling", "eval", "policy")
"""Tables that most tasks set something of."""
_SPARE = 8
"""Lines that are kept for the parameters of an environment that is yet to be chosen, and for what is wrong."""


class Fields(Vertical):
    """All lines of the form; scrolls with the cursor."""

    DEFAULT_CSS = """
    Fields { padding: 0 1; overflow-y: auto; }
    Fields > Vertical { height: auto; }
    Fields #parameters { margin-bottom: 1; }
    """

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self._choices = choices
        self._told: tuple[Checked, Mapping[str, str]] | None = None
        """What was last said of the lines: those that are being made hear it once they stand."""

    async def show(self, form: Form) -> None:
        """Make all lines anew."""
        first = {field.key: field for field in task_fields() if field.key in FIRST}
        await self.remove_children()
        await self.mount_all(
            [
                *(self._row(first[key], form) for key in FIRST),
                Vertical(id="parameters"),
                Policies(self._choices),
                *(Section(table, _folded(table), form.texts, self._choices) for table in FOLDED),
            ]
        )
        await self.show_parameters(form)
        await self.show_policies(form)
        self.focus_first()
        await self._unfold_what_fits()

    async def _unfold_what_fits(self) -> None:
        """Unfold the tables for which a high screen has room, the first ones first."""
        room = self.app.size.height - _AROUND - len(self.query(FieldRow)) - len(FOLDED) - _SPARE
        for section in self.query(Section):
            if section.table in _USUAL and len(section.fields) <= room:
                await section.unfold()
                room -= len(section.fields)
        self._tell_again()

    async def show_policies(self, form: Form) -> None:
        """Bring the lines of several policies up to date."""
        await self.query_one(Policies).show(form)
        self._tell_again()

    async def go_to(self, key: str) -> None:
        """Put the cursor into the field of a key, in whichever table that is folded."""
        for section in self.query(Section):
            if key in section.keys:
                await section.unfold()
        if key in self.query_one(Policies).keys:
            await self.query_one(Policies).unfold(key)
        self._tell_again()
        for row in self.query(FieldRow):
            if row.field.key == key:
                row.query_one(Input).focus()

    async def show_parameters(self, form: Form) -> None:
        """Make the lines of the environment's parameters anew; the cursor stays where it is."""
        place = self.query_one("#parameters", Vertical)
        await place.remove_children()
        await place.mount_all([self._row(field, form) for field in form.parameters])
        self._tell_again()

    def focus_first(self) -> None:
        """Focus the first field that has no text."""
        fields = list(self.query(Input))
        empty = next((field for field in fields if not field.value), None)
        if target := empty or next(iter(fields), None):
            target.focus()

    def tell(self, checked: Checked, texts: Mapping[str, str]) -> None:
        """Show what is wrong, beside each field and in the titles of tables."""
        self._told = (checked, texts)
        for row in self.query(FieldRow):
            if row.is_mounted:
                row.tell(checked.problems.get(row.field.key, ""), row.field.key in checked.missing)
        for section in self.query(Section):
            if section.is_mounted:
                section.tell(checked.problems, texts)
        for policies in self.query(Policies):
            if policies.is_mounted:
                policies.tell(checked.problems)

    def _tell_again(self) -> None:
        if self._told is not None:
            self.tell(*self._told)

    def _row(self, field: FormField, form: Form) -> FieldRow:
        return FieldRow(field, form.texts.get(field.key, ""), self._choices)


def _folded(table: str) -> tuple[FormField, ...]:
    return tuple(field for field in task_fields() if field.table == table and field.key not in FIRST)
