"""A table of the form, and what it is told while it comes or goes."""

from __future__ import annotations

from textual.app import App, ComposeResult
from textual.widgets import Collapsible

from marlaas.app.tui.form.form import task_fields
from marlaas.app.tui.screens.submit import FieldRow, Section

TRAIN = [field for field in task_fields() if field.table == "train"]


class Form(App[None]):
    """One table."""

    def compose(self) -> ComposeResult:
        yield Section("train", TRAIN, {}, lambda _: ())


async def test_what_is_taken_away_is_told_without_harm() -> None:
    """As where a name is typed on while the lines of a policy are made anew."""
    app = Form()
    async with app.run_test() as pilot:
        section = app.query_one(Section)
        await section.unfold()
        await pilot.pause()
        section.tell({TRAIN[0].key: "is wrong"}, {TRAIN[0].key: "x"})
        assert section.query_one(Collapsible).title.endswith("(1 set, 1 wrong)")
        row = section.query(FieldRow).first()
        row.tell("is wrong", False)
        for widget in (row, section):
            await widget.remove_children()
        row.tell("is right", False)
        section.tell({}, {})
        assert section.is_mounted and not section.query(Collapsible)
