"""The first line of every screen: which home, how many tasks are blocked, and whether an engine serves it."""

from __future__ import annotations

from textual.content import Content
from textual.reactive import reactive
from textual.widget import Widget

from ..words.format import cells, clip, line
from ..words.tasks import Liveness, state_word

_STYLES = {"alive": "bold $text-success", "silent": "bold $text-warning", "down": "bold $text-error"}
_MARKS = {"alive": "●", "silent": "!", "down": "✗", "never": "○"}


class TopBar(Widget):
    """Title at the left, engine at the right; the engine is never cut."""

    DEFAULT_CSS = """
    TopBar { dock: top; height: 1; padding: 0 1; background: $panel; }
    """

    engine: reactive[Liveness] = reactive(Liveness("never", "never started"))
    blocked: reactive[int] = reactive(0)
    """Tasks that are blocked."""

    def __init__(self, title: str, home: str) -> None:
        super().__init__()
        self._title = title
        self._home = home

    def render(self) -> Content:
        """The line."""
        engine = f"engine: {_MARKS.get(self.engine.word, '')} {self.engine.text}"
        blocked = f"{state_word('blocked').replace(' ', f' {self.blocked:,} ')}  " if self.blocked else ""
        width = self.content_size.width
        room = width - cells(blocked + engine) - 2
        title = clip(f"{self._title}  {line(self._home)}", max(0, room))
        gap = " " * max(0, width - cells(title) - cells(blocked + engine))
        return Content.assemble(
            (title[: len(self._title)], "bold"),
            (title[len(self._title) :], "$text-muted"),
            gap,
            (blocked, "bold $text-error"),
            (engine, _STYLES.get(self.engine.word, "$text-muted")),
        )
