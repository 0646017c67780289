"""The version under the cursor in a few lines: what it is, what it scored, and what may be done with it."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store.kept import KeptVersion

from ...format import line, score, size


class VersionDetail(Widget):
    """What the list has no room for."""

    DEFAULT_CSS = """
    VersionDetail { height: 4; padding: 0 1; border-top: solid $panel-lighten-2; }
    """

    kept: reactive[KeptVersion | None] = reactive(None)
    together: reactive[str] = reactive("")
    """What the versions of its task take."""

    def render(self) -> Content:
        """Three lines."""
        if self.kept is None:
            return Content("")
        row, width = self.kept.row, self.content_size.width
        measured = "not measured" if row.score is None else f"held-out {score(row.score)}"
        if self.kept.stderr is not None and row.score is not None:
            measured += f" ± {score(self.kept.stderr)}"
        optimizer = (
            "with its optimizer's moments: training can go on from it as it was"
            if row.resumable
            else "without its optimizer's moments: training goes on from it with a new optimizer"
        )
        name = line(f"{row.name}  {row.tenant} / {row.task_name}  ({self.kept.environment})", width)
        state = f"task {row.task} is {self.kept.task_state}, step {self.kept.step}/{self.kept.steps}"
        words = (f"version {row.number}", self.kept.label, measured, size(row.size), state, self.together)
        numbers = " · ".join(filter(None, words))
        return Content.assemble(
            (name, "bold"), "\n", line(numbers, width), "\n", (line(f"Kept {optimizer}.", width), "$text-muted")
        )
