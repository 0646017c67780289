"""The first line of every screen: which home, what happens in it, and whether an engine serves it."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from ..words.format import cells, clip, line
from ..words.overview import Overview, Part, parts
from ..words.tasks import Liveness

_STYLES = {"alive": "bold $text-success", "silent": "bold $text-warning", "down": "bold $text-error"}
_MARKS = {"alive": "●", "silent": "!", "down": "✗", "stopped": "○", "never": "○"}
_BETWEEN = " · "
_HOME = 3
"""The rank of the home's folder among the parts."""
_LEAST_HOME = 24
"""Cells from which on a long folder's name is cut, to make room for others."""


class TopBar(Widget):
    """Title and home at the left, engine at the right, which is never cut; between them what there is room for."""

    DEFAULT_CSS = """
    TopBar { dock: top; height: 1; padding: 0 1; background: $panel; }
    """

    engine: reactive[Liveness] = reactive(Liveness("never", "never started"))
    overview: reactive[Overview] = reactive(Overview())

    def __init__(self, title: str, home: str) -> None:
        super().__init__()
        self._title = title
        self._home = home

    def render(self) -> Content:
        """The line."""
        engine = f"engine: {_MARKS.get(self.engine.word, '')} {self.engine.text}"
        width = self.content_size.width
        title = clip(self._title, max(0, width - cells(engine) - 2))
        room = width - cells(engine) - cells(title) - 4
        home = Part(clip(line(self._home), max(_LEAST_HOME, room // 3)), _HOME)
        kept = fitting([home, *parts(self.overview)], room, cells(_BETWEEN))
        folder = f"  {home.text}" if home in kept else ""
        middle = Content(_BETWEEN).join([Content.styled(part.text, part.style) for part in kept if part is not home])
        gap = max(0, width - cells(title) - cells(folder) - cells(engine) - middle.cell_length)
        after = min(gap, 2)
        return Content.assemble(
            (title, "bold"),
            (folder, "$text-muted"),
            " " * (gap - after),
            middle,
            " " * after,
            (engine, _STYLES.get(self.engine.word, "$text-muted")),
        )


def fitting(found: Sequence[Part], room: int, between: int) -> list[Part]:
    """Those parts that there is room for, chosen by rank, in the order in which they were given."""
    kept: list[Part] = []
    for part in sorted(found, key=lambda part: part.rank):
        room -= cells(part.text) + between
        if room < 0:
            break
        kept.append(part)
    return [part for part in found if part in kept]
