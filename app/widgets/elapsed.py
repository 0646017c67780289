"""A line that says what is under way, and for how many seconds by now."""

from __future__ import annotations

import time

from textual.content import Content
from textual.timer import Timer
from textual.widgets import Static

from ..context.notices import counting


class Elapsed(Static):
    """Shows a text; while what it tells of is under way, the seconds since then stand behind it."""

    def __init__(self, id: str | None = None) -> None:
        super().__init__("", markup=False, id=id)
        self._text = Content("")
        self._since: float | None = None
        self._counting: Timer | None = None

    def on_mount(self) -> None:
        """Be ready to count."""
        self._counting = self.set_interval(1.0, self._count, pause=self._since is None)

    def show(self, text: Content | str, under_way: bool = False) -> None:
        """Show a text at once."""
        self._text = text if isinstance(text, Content) else Content(text)
        self._since = time.monotonic() if under_way else None
        if self._counting is not None:
            self._counting.resume() if under_way else self._counting.pause()
        self.update(self._text)

    def _count(self) -> None:
        if self._since is not None:
            self.update(self._text + counting("", time.monotonic() - self._since))
