"""The second line of every screen: which views there are, and which one this is."""

from __future__ import annotations

from textual.content import Content
from textual.events import Click
from textual.reactive import reactive
from textual.widget import Widget

from ..format import cells
from ..modes import ALL_MODES


class ViewBar(Widget):
    """Numbers and names of the views; a click opens one."""

    DEFAULT_CSS = """
    ViewBar { dock: top; height: 1; margin-top: 1; padding: 0 1; background: $surface; }
    """

    shown: reactive[tuple[str, int | None]] = reactive(("queue", None))
    """The view in sight, and the selected task."""

    def render(self) -> Content:
        """The line: names where there is room, else numbers."""
        long = "  ".join(self._texts())
        texts = self._texts() if cells(long) <= self.content_size.width else [str(i + 1) for i in range(len(ALL_MODES))]
        name = self.shown[0]
        parts: list[tuple[str, str] | str] = []
        for mode, text in zip(ALL_MODES, texts, strict=True):
            parts += [(text, "bold reverse" if mode.name == name else "$text-muted"), "  "]
        return Content.assemble(*parts[:-1])

    def _texts(self) -> list[str]:
        selected = self.shown[1]
        return [
            f"{place} {mode.name}{f' {selected}' if mode.of_task and selected else ''}"
            for place, mode in enumerate(ALL_MODES, 1)
        ]

    def on_click(self, event: Click) -> None:
        """Open the view under the mouse."""
        place = 1
        for mode, text in zip(ALL_MODES, self._texts(), strict=True):
            if place <= event.x < place + cells(text):
                self.app.run_worker(self.app.run_action(f"open_view('{mode.name}')"))
            place += cells(text) + 2
