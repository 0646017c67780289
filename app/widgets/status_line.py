"""The line above the footer: what the workers do, or why nothing can be read."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store.rows import WorkerRow

from ..format import cells, clip, line, share, size


class StatusLine(Widget):
    """A problem if there is one, else one part per worker, as many as fit."""

    DEFAULT_CSS = """
    StatusLine { height: 1; padding: 0 1; color: $text-muted; }
    """

    problem: reactive[str] = reactive("")
    processes: reactive[Sequence[WorkerRow]] = reactive(())
    hint: reactive[str] = reactive("")
    """What to do next; shown where there is no problem."""

    def render(self) -> Content:
        """The line."""
        width = self.content_size.width
        if self.problem:
            return Content.styled(line(f"! {self.problem}", width), "bold $text-error")
        if self.hint:
            return Content.styled(line(self.hint, width), "$text-warning")
        text = ""
        for worker in self.processes:
            part = worker_text(worker)
            longer = f"{text} · {part}" if text else part
            if cells(longer) > width - 2:
                return Content(clip(f"{text} · …", width))
            text = longer
        return Content(text)


def worker_text(worker: WorkerRow) -> str:
    """A worker in a few words."""
    state = "" if worker.state in ("running", "ready", "alive") else f" {line(worker.state, 12)}"
    return f"{line(worker.name, 24)}{state} {size(worker.rss or 0)} {share(worker.busy or 0)}"
