"""A table of the form that folds: its lines are made when it is first unfolded."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.widget import Widget
from textual.widgets import Collapsible

from ...form.fields import FormField
from .field_row import Choices, FieldRow

_TITLES = {
    "train": "train: how it learns",
    "sampling": "sampling: how it writes",
    "eval": "eval: how it is measured",
    "policy": "policy: the adapter",
    "data": "data: rows of its own",
    "queue": "queue: priority, dependencies",
    "keep": "keep: versions that stay on the disk",
    "watch": "watch: what to do when learning goes wrong",
    "": "more",
}


class Section(Widget):
    """The fields of one table below its title, which says how many of them are set or wrong."""

    DEFAULT_CSS = """
    Section { height: auto; }
    Section Collapsible { background: transparent; border: none; padding: 0; }
    Section Collapsible Contents { padding: 0 0 0 2; }
    Section #rows { height: auto; }
    """

    def __init__(self, table: str, fields: Sequence[FormField], texts: Mapping[str, str], choices: Choices) -> None:
        super().__init__()
        self._choices = choices
        self.table = table
        self.fields = fields
        self._texts = texts
        """The texts of the fields, as last reported."""

    def compose(self) -> ComposeResult:
        """Lay out the title, folded, without lines."""
        with Collapsible(title=_TITLES.get(self.table, self.table)):
            yield Vertical(id="rows")

    @property
    def keys(self) -> set[str]:
        """The keys of its fields."""
        return {field.key for field in self.fields}

    async def unfold(self) -> None:
        """Show its lines."""
        self.query_one(Collapsible).collapsed = False
        await self._fill()

    async def on_collapsible_expanded(self, event: Collapsible.Expanded) -> None:
        """Make the lines."""
        event.stop()
        await self._fill()

    async def _fill(self) -> None:
        rows = self.query_one("#rows", Vertical)
        if not rows.children:
            texts = self._texts
            await rows.mount_all([FieldRow(field, texts.get(field.key, ""), self._choices) for field in self.fields])

    def tell(self, problems: Mapping[str, str], texts: Mapping[str, str]) -> None:
        """Show in the title how many fields are set or wrong."""
        self._texts = texts
        wrong = len(self.keys & problems.keys())
        filled = sum(bool(self._texts.get(key, "").strip()) for key in self.keys)
        notes = ", ".join(f"{count} {what}" for count, what in ((filled, "set"), (wrong, "wrong")) if count)
        title = _TITLES.get(self.table, self.table) + (f" ({notes})" if notes else "")
        for collapsible in self.query(Collapsible):  # none while it is being taken away
            if collapsible.title != title:
                collapsible.title = title
            collapsible.set_class(bool(wrong), "-wrong")
