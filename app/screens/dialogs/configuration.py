"""The configuration of tasks: defaults are dim, chosen values and differences between the tasks are marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.binding import Binding, BindingType
from textual.content import Content

from ...home.configuration import Setting
from ...words.format import cells, clip, pad
from .reading import Reading

_KEY, _LEAST = 34, 9


class Configuration(Reading):
    """A table with a column for each task."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("a", "toggle_all", "all or changed keys", id="configuration.all"),
        Binding("d", "dismiss", "close", show=False, id="configuration.close"),
    ]

    def __init__(self, tasks: Sequence[int], settings: Sequence[Setting], compared: Sequence[str] = ()) -> None:
        """``tasks``: the number of each column; ``compared``: lines about their scores, above the table."""
        super().__init__()
        self._compared = compared
        self._tasks, self._settings = tasks, settings
        self._all = True

    def heading(self) -> str:
        """Whose configuration it is."""
        if len(self._tasks) == 1:
            return f"configuration of task {self._tasks[0]}"
        return f"configurations of {len(self._tasks)} tasks"

    def legend(self) -> Content:
        """What the marks mean, and how much is hidden."""
        differing = Content.styled("   ≠ differs between tasks", "$text-warning") if len(self._tasks) > 1 else ""
        hidden = len(self._settings) - len(self._shown)
        return Content.assemble(
            ("● chosen", "$text-primary"), differing, f"   {hidden} defaults hidden" if hidden else ""
        )

    def text(self, width: int) -> Content:
        """Scores, then a line for each key."""
        scores = [Content(f"{text}\n") for text in (*self._compared, *([""] if self._compared else []))]
        return Content.assemble(*scores, table(self._tasks, self._shown, width))

    @property
    def _shown(self) -> list[Setting]:
        return [row for row in self._settings if self._all or row.differs or not row.default]

    def action_toggle_all(self) -> None:
        """Show all keys, or those that were chosen or that differ."""
        self._all = not self._all
        self.draw()


def table(tasks: Sequence[int], rows: Sequence[Setting], width: int) -> Content:
    """A line for each key."""
    if not rows:
        return Content.styled("All values are the defaults.", "$text-muted")
    key = min(_KEY, max(cells(row.key) for row in rows) + 1, max(_LEAST, width // 2))
    each = max(_LEAST, (width - key - 2) // len(tasks) - 1)
    lines = []
    if len(tasks) > 1:
        names = " ".join(pad(f"task {task}", each) for task in tasks)
        lines.append(Content.styled(f"{' ' * (key + 2)}{names}", "bold"))
    for row in rows:
        mark = "≠" if row.differs else " " if row.default else "●"
        values = " ".join(pad(clip(value, each), each) for value in row.values)
        style = "$text-warning" if row.differs else "$text-muted" if row.default else "$text-primary"
        lines.append(Content.styled(f"{mark} {pad(clip(row.key, key - 1), key)}{values}".rstrip(), style))
    return Content("\n").join(lines)
