"""The line above the footer: what the workers do, or why nothing can be read."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from marlaas.engine.store import WorkerRow

from ..words.format import cells, clip, line, share, size

_FIRST = ("rollout", "training", "engine")


class StatusLine(Widget):
    """A problem if there is one, else a note and one part for each worker, as many as fit."""

    DEFAULT_CSS = """
    StatusLine { dock: bottom; margin-bottom: 1; height: 1; padding: 0 1; color: $text-muted; }
    """

    problem: reactive[str] = reactive("")
    processes: reactive[Sequence[WorkerRow]] = reactive(())
    hint: reactive[str] = reactive("")
    """What to do next; shown where there is no problem."""
    note: reactive[str] = reactive("")
    """What goes on beside the engine; before the workers."""

    def render(self) -> Content:
        """The line."""
        width = self.content_size.width
        if self.problem:
            return Content.styled(line(f"! {self.problem}", width), "bold $text-error")
        if self.hint:
            return Content.styled(line(self.hint, width), "$text-warning")
        text = line(self.note, width)
        for part in worker_texts(self.processes):
            longer = f"{text} · {part}" if text else part
            if cells(longer) > width - 2:
                return Content(clip(f"{text} · …", width))
            text = longer
        return Content(text)


def worker_texts(workers: Sequence[WorkerRow]) -> list[str]:
    """Each worker in a few words: rollout and training first, then the engine, and all environments together."""
    environments = [worker for worker in workers if worker.name.startswith("env")]
    others = sorted((worker for worker in workers if worker not in environments), key=_rank)
    texts = []
    for worker in others:
        state = "" if worker.state == "running" else f" {line(worker.state, 12)}"
        load = "" if worker.pid is None else f" {_load(worker)}"
        texts.append(f"{line(worker.name, 24)}{state}{load}")
    if len(environments) == 1:
        texts.append(f"{line(environments[0].name, 24)} {_load(environments[0])}")
    elif environments:
        texts.append(f"{len(environments)} environments {size(sum(worker.rss or 0 for worker in environments))}")
    return texts


def _rank(worker: WorkerRow) -> tuple[int, str]:
    return (_FIRST.index(worker.name) if worker.name in _FIRST else len(_FIRST), worker.name)


def _load(worker: WorkerRow) -> str:
    return f"{size(worker.rss or 0)} {share(worker.busy or 0)}"
