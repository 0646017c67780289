"""The left side of the form: what everybody sets, the environment's parameters, and all other tables, folded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.containers import Vertical
from textual.widgets import Input

from ...form.checking import Checked
from ...form.fields import FIRST, FOLDED, FormField, task_fields
from ...form.form import Form
from .field_row import FieldRow
from .section import Section


class Fields(Vertical):
    """All lines of the form; scrolls with the cursor."""

    DEFAULT_CSS = """
    Fields { padding: 0 1; overflow-y: auto; }
    Fields > Vertical { height: auto; }
    Fields #parameters { margin-bottom: 1; }
    """

    async def show(self, form: Form) -> None:
        """Make all lines anew."""
        first = {field.key: field for field in task_fields() if field.key in FIRST}
        suggestions = {"tenant": form.sources.tenants, "environment": form.sources.names}
        await self.remove_children()
        await self.mount_all(
            [
                *(_row(first[key], form.texts, suggestions.get(key, ())) for key in FIRST),
                Vertical(id="parameters"),
                *(Section(table, _folded(table), form.texts) for table in FOLDED),
            ]
        )
        await self.show_parameters(form)
        self.focus_first()

    async def show_parameters(self, form: Form) -> None:
        """Make the lines of the environment's parameters anew; the cursor stays where it is."""
        place = self.query_one("#parameters", Vertical)
        await place.remove_children()
        await place.mount_all([_row(field, form.texts) for field in form.parameters])

    def focus_first(self) -> None:
        """Focus the first field that has no text."""
        fields = list(self.query(Input))
        empty = next((field for field in fields if not field.value), None)
        if target := empty or next(iter(fields), None):
            target.focus()

    def tell(self, checked: Checked, texts: Mapping[str, str]) -> None:
        """Show what is wrong, beside each field and in the titles of tables."""
        for row in self.query(FieldRow):
            row.tell(checked.problems.get(row.field.key, ""), row.field.key in checked.missing)
        for section in self.query(Section):
            section.tell(checked.problems, texts)


def _row(field: FormField, texts: Mapping[str, str], suggestions: Sequence[str] = ()) -> FieldRow:
    return FieldRow(field, texts.get(field.key, ""), tuple(suggestions))


def _folded(table: str) -> tuple[FormField, ...]:
    return tuple(field for field in task_fields() if field.table == table and field.key not in FIRST)
