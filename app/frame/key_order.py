"""Handles keys one after another: the next key is handled once everything that the last one set off is done.

Textual hands every key at once to whatever has the focus. When “/watched” is typed quickly, or comes through a slow
line in one piece, the letters would reach the list before the slash has moved the focus, and act as commands. Here a
key that comes too early waits until the message queues above the focus, through which keys and their messages travel,
are empty.
"""

from __future__ import annotations

from collections import deque

from textual.app import App
from textual.events import Event, Key, Paste
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input

_ROUNDS = 12
"""Most rounds of the mark after one key: a dialog needs three or four until its field has the focus."""
_PATIENCE = 1.0
"""Seconds after which the next key is handled all the same: the widget with the mark may be gone."""


class KeyOrder(App[None]):
    """An application that handles the keys of a fast typist in order."""

    class Climbed(Message):
        """A mark sent to the focus after a key; it reaches the application once everything before it has."""

    def __init__(self) -> None:
        super().__init__()
        self._under_way = 0
        """Rounds that the mark of the present key may still make; 0: no key is being handled."""
        self._early: deque[Key | Paste] = deque()
        self._patience: Timer | None = None

    @property
    def keys_wait(self) -> bool:
        """Whether a key is under way, or others are held back behind it."""
        return bool(self._early or self._under_way)

    async def on_event(self, event: Event) -> None:
        """Handle the event, or keep a key that comes too early."""
        if not isinstance(event, (Key, Paste)) or event.is_forwarded:
            await super().on_event(event)
        elif self._under_way:
            self._early.append(event)
            if self._patience is None:
                self._patience = self.set_timer(_PATIENCE, self._next_key)
        elif isinstance(self.focused, Input) and isinstance(event, Key) and event.is_printable:
            await super().on_event(event)  # a letter typed into a text moves no focus, and there may be a million
        else:
            self._under_way = _ROUNDS
            await super().on_event(event)
            await self._send_mark()

    async def _send_mark(self) -> None:
        if not (self.focused or self.screen).post_message(self.Climbed()):
            await self._next_key()

    async def on_key_order_climbed(self, message: Climbed) -> None:
        """Send the mark again where something was set off, else handle the next key."""
        message.stop()
        if not self._under_way or not self.screen_stack:  # without a screen the application is closing
            return
        self._under_way -= 1
        busy = any(node.message_queue_size for node in (self.focused or self.screen).ancestors_with_self)
        if busy and self._under_way:
            await self._send_mark()
        else:
            await self._next_key()

    async def _next_key(self) -> None:
        self._under_way = 0
        if self._patience is not None:
            self._patience.stop()
            self._patience = None
        while self._early and not self._under_way:
            await self.on_event(self._early.popleft())
        if self._early and self._patience is None:
            self._patience = self.set_timer(_PATIENCE, self._next_key)
