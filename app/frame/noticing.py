"""Notices: kept for the time that it takes to read them, and shown by the screen in sight.

Every view has a line for them (``app/widgets/notice_line.py``). A dialog has none: there Textual's toasts show them.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from textual.message import Message
from textual.timer import Timer

from ..context.notices import Notice, counting, current, lasting
from ..widgets.notice_line import NoticeLine
from ..words.format import line
from .terminal import KeyOrder

_REMEMBERED = 100
_SECOND = 1.0
_CHARACTERS = 400
"""Most characters of a notice."""


class Noticing(KeyOrder):
    """An application that tells a person things in passing."""

    @dataclass
    class Noticed(Message, bubble=False):
        """There is something to tell."""

        notice: Notice

    def __init__(self) -> None:
        super().__init__()
        self.told: deque[Notice] = deque(maxlen=_REMEMBERED)
        """The last notices, the newest last."""
        self._going: dict[str, float] = {}
        """What is under way, with the moment at which it began."""
        self._renewal: Timer | None = None

    @property
    def notices(self) -> tuple[Notice, ...]:
        """The notices of now."""
        now = time.monotonic()
        going = (Notice(counting(text, now - began)) for text, began in self._going.items())
        return (*current(self.told, now), *going)

    def under_way(self, text: str) -> Callable[[], None]:
        """Tell at once what is under way, and its seconds, until the function that is returned is called."""
        self._going[text] = time.monotonic()
        self._show_notices()

        def end() -> None:
            self._going.pop(text, None)
            self._show_notices()

        return end

    def say(self, text: str, bad: bool = False) -> None:
        """Show a notice; ``text`` may come from others."""
        self.notify(text, severity="warning" if bad else "information", markup=False)

    def notify(
        self,
        message: str,
        *,
        title: str = "",
        severity: Literal["information", "warning", "error"] = "information",
        timeout: float | None = None,
        markup: bool = True,
    ) -> None:
        """Show a notice; may be called from any thread. No markup is read."""
        text = line(f"{title}: {message}" if title else message, _CHARACTERS)
        until = time.monotonic() + (lasting(text) if timeout is None else timeout)
        self.post_message(self.Noticed(Notice(text, severity != "information", until)))

    def on_noticing_noticed(self, message: Noticed) -> None:
        """Show it at once."""
        notice = message.notice
        self.told.append(notice)
        self._show_notices()
        if self.screen_stack and not self.screen.query(NoticeLine):
            severity: Literal["information", "warning"] = "warning" if notice.bad else "information"
            super().notify(notice.text, severity=severity, timeout=lasting(notice.text), markup=False)

    def _show_notices(self) -> None:
        """Show what is to be told now, and come back when the next of it goes."""
        notices = self.notices
        if self.screen_stack:  # a view below a dialog shows them once it is in sight again
            for each in self.screen.query(NoticeLine):
                each.show(notices)
        if self._renewal is not None:
            self._renewal.stop()
        if notices:
            now = time.monotonic()
            left = min(notice.until - now if notice.until else _SECOND for notice in notices)
            self._renewal = self.set_timer(max(0.05, left), self._show_notices)
