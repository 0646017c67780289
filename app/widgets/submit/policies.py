"""Several policies in the form: their names, who acts as which agent, and a table that folds for each of them."""

from __future__ import annotations

from collections.abc import Mapping

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Collapsible

from ...form.fields import AGENTS, POLICIES, FormField, name_fields
from ...form.form import Form
from .field_row import Choices, FieldRow
from .section import Section

_TITLE = "policies: several that learn or play together"


class Policies(Widget):
    """Its lines follow the names that are typed into its first."""

    DEFAULT_CSS = """
    Policies { height: auto; }
    Policies > Collapsible { background: transparent; border: none; padding: 0; }
    Policies > Collapsible > Contents { padding: 0 0 0 2; }
    Policies Vertical { height: auto; }
    """

    def __init__(self, choices: Choices) -> None:
        super().__init__()
        self._choices = choices
        self._form = Form()

    def compose(self) -> ComposeResult:
        """Lay out the title, folded, without lines."""
        with Collapsible(title=_TITLE):
            yield Vertical(id="names")
            yield Vertical(id="speakers")
            yield Vertical(id="tables")

    @property
    def keys(self) -> set[str]:
        """The keys that have a line here, now or once it is unfolded."""
        return {POLICIES, AGENTS, *(field.key for field in self._form.named)}

    async def show(self, form: Form) -> None:
        """Bring the lines up to date; a form with several policies is unfolded."""
        begun, self._form = bool(self._form.policies), form
        if form.policies and not begun:
            self.query_one(Collapsible).collapsed = False
        if not self.query_one(Collapsible).collapsed:
            await self._fill()

    async def unfold(self, key: str) -> None:
        """Make the line of a key, and show it."""
        self.query_one(Collapsible).collapsed = False
        await self._fill()
        for section in self.query(Section):
            if key in section.keys:
                await section.unfold()

    async def on_collapsible_expanded(self, event: Collapsible.Expanded) -> None:
        """Make the lines."""
        event.stop()
        await self._fill()

    async def _fill(self) -> None:
        form = self._form
        names = [field for field in name_fields() if field.key == POLICIES or not form.declared]
        await self._rows("names", names)
        await self._rows("speakers", [field for field in form.named if field.table == AGENTS])
        tables = self.query_one("#tables", Vertical)
        wanted = [f"{POLICIES}.{name}" for name in form.policies]
        if [section.table for section in tables.query_children(Section)] != wanted:
            await tables.remove_children()
            await tables.mount_all(
                Section(table, tuple(f for f in form.named if f.table == table), form.texts, self._choices)
                for table in wanted
            )

    async def _rows(self, place: str, fields: list[FormField]) -> None:
        """Make lines anew where they are others than before; the cursor's line stays."""
        rows = self.query_one(f"#{place}", Vertical)
        if [row.field for row in rows.query_children(FieldRow)] != fields:
            await rows.remove_children()
            await rows.mount_all(
                FieldRow(field, self._form.texts.get(field.key, ""), self._choices) for field in fields
            )

    def tell(self, problems: Mapping[str, str]) -> None:
        """Show in the title how many policies there are, and how many fields are wrong."""
        wrong, many = len(self.keys & problems.keys()), len(self._form.policies)
        notes = ", ".join(note for note in (f"{many} named" * bool(many), f"{wrong} wrong" * bool(wrong)) if note)
        collapsible = self.query_one(Collapsible)
        title = _TITLE + (f" ({notes})" if notes else "")
        if collapsible.title != title:
            collapsible.title = title
