"""The second line of every screen: the views, with the present one marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from textual.content import Content
from textual.events import Click
from textual.reactive import reactive
from textual.widget import Widget

from ..context.application import ViewName
from ..words.format import cells


class ViewBar(Widget):
    """Numbers and names of the views; a click opens one."""

    DEFAULT_CSS = """
    ViewBar { dock: top; height: 1; margin-top: 1; padding: 0 1; background: $surface; }
    """

    shown: reactive[tuple[str, int | None]] = reactive(("queue", None))
    """The view in sight, and the selected task."""

    def __init__(self, views: Sequence[ViewName]) -> None:
        super().__init__()
        self._views = views

    def render(self) -> Content:
        """The line with the present view marked."""
        parts: list[tuple[str, str] | str] = []
        texts, gap = self._texts()
        for mode, text in zip(self._views, texts, strict=True):
            parts += [(text, "bold reverse" if mode.name == self.shown[0] else "$text-muted"), gap]
        return Content.assemble(*parts[:-1])

    def _texts(self) -> tuple[list[str], str]:
        """The names with the selected task where there is room; else with it in this view only; else this view's name
        among numbers; else only numbers. And what is between them: one space where two have no room."""
        numbers = [str(place) for place in range(1, len(self._views) + 1)]
        room = self.content_size.width
        present = self._named(lambda mode: mode.name == self.shown[0])
        here = [
            name if mode.name == self.shown[0] else number
            for mode, name, number in zip(self._views, present, numbers, strict=True)
        ]
        choices = ((self._named(lambda mode: True), "  "), (present, "  "), (present, " "), (here, "  "))
        return next(((texts, gap) for texts, gap in choices if cells(gap.join(texts)) <= room), (numbers, " "))

    def _named(self, with_task: Callable[[ViewName], bool]) -> list[str]:
        task = self.shown[1]
        return [
            f"{place} {mode.name}{f' {task}' if task and mode.of_task and with_task(mode) else ''}"
            for place, mode in enumerate(self._views, 1)
        ]

    def on_click(self, event: Click) -> None:
        """Open the view under the mouse."""
        place = 1
        texts, gap = self._texts()
        for mode, text in zip(self._views, texts, strict=True):
            if place <= event.x < place + cells(text):
                self.app.run_worker(self.app.run_action(f"open_view('{mode.name}')"))
            place += cells(text) + len(gap)
