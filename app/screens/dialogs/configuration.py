"""The configuration of tasks: defaults are dim, chosen values and differences between the tasks are marked."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from ...home.configuration import Setting
from ...words.format import cells, clip, pad

_KEY, _LEAST = 34, 9


class Configuration(ModalScreen[None]):
    """A table with a column for each task."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,d,q", "dismiss", "close", key_display="esc", id="configuration.close"),
        Binding("a", "toggle_all", "all or changed keys", id="configuration.all"),
        Binding("j", "down", show=False, id="configuration.down"),
        Binding("k", "up", show=False, id="configuration.up"),
    ]
    DEFAULT_CSS = """
    Configuration { align: center middle; }
    Configuration > Vertical { width: 96%; max-width: 130; height: 92%; background: $surface; border: round $primary;
                               padding: 0 1; }
    Configuration VerticalScroll { height: 1fr; }
    Configuration #legend { height: 1; }
    Configuration #keys { width: 100%; }
    """
    AUTO_FOCUS = "VerticalScroll"

    def __init__(self, tasks: Sequence[int], settings: Sequence[Setting], compared: Sequence[str] = ()) -> None:
        """``tasks``: the number of each column; ``compared``: lines about their scores, above the table."""
        super().__init__()
        self._compared = compared
        self._tasks, self._settings = tasks, settings
        self._all = True

    def compose(self) -> ComposeResult:
        """Lay out head, table and keys."""
        with Vertical():
            yield Static(id="legend", markup=False)
            with VerticalScroll():
                yield Static(id="keys", markup=False)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        """Show the table."""
        self._show()

    def on_resize(self, event: Resize) -> None:
        """Fit the columns to the new width."""
        self.call_after_refresh(self._show)

    def action_toggle_all(self) -> None:
        """Show all keys, or those that were chosen or that differ."""
        self._all = not self._all
        self._show()

    def action_down(self) -> None:
        """Scroll down."""
        self.query_one(VerticalScroll).scroll_down()

    def action_up(self) -> None:
        """Scroll up."""
        self.query_one(VerticalScroll).scroll_up()

    def _show(self) -> None:
        shown = [row for row in self._settings if self._all or row.differs or not row.default]
        width = self.query_one("#keys").content_size.width or 70
        title = f"Configuration of task {self._tasks[0]}" if len(self._tasks) == 1 else "Configurations"
        hidden = f" · {len(self._settings) - len(shown)} defaults hidden" if not self._all else ""
        differing = "   ≠ differs between tasks" if len(self._tasks) > 1 else ""
        self.query_one("#legend", Static).update(
            Content.assemble((title, "bold"), (hidden, "$text-muted"), ("   ● chosen", "$text-primary"), differing)
        )
        scores = [Content(f"{text}\n") for text in (*self._compared, *([""] if self._compared else []))]
        self.query_one("#keys", Static).update(Content.assemble(*scores, table(self._tasks, shown, width)))


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
