"""The version under the cursor in a few lines: what it is, its score, and what can be done with it."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store import KeptVersion

from ...words.format import line, size
from ...words.scores.held_out import held_out


class VersionDetail(Widget):
    """The details of a version that the list has no room for."""

    DEFAULT_CSS = """
    VersionDetail { height: 4; padding: 0 1; border-top: solid $panel-lighten-2; }
    """

    kept: reactive[KeptVersion | None] = reactive(None)
    about: reactive[str] = reactive("")
    """The version's task, in a few safe words."""

    def render(self) -> Content:
        """Three lines."""
        if self.kept is None:
            return Content("")
        row, width = self.kept.row, self.content_size.width
        measured = "not measured" if row.basis is None else f"held-out {held_out(row.score, row.basis)}"
        resumable = f"resumable: {'yes' if row.resumable else 'no'}"
        name = line(f"{row.name}  {row.tenant} / {row.task_name}  ({self.kept.environment})", width)
        words = (f"version {row.number}", self.kept.label, measured, size(row.size), resumable)
        numbers = line(" · ".join(filter(None, words)), width)
        return Content.assemble((name, "bold"), "\n", numbers, "\n", (line(self.about, width), "$text-muted"))
