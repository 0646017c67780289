"""The terminal: clipboard, order of keys, hang-up, resuming."""

from __future__ import annotations

import os
import select
import signal
import threading
from collections import deque
from functools import partial
from pathlib import Path
from typing import Any

from textual.app import App
from textual.drivers.linux_driver import LinuxDriver
from textual.events import Event, Key, Paste
from textual.message import Message
from textual.timer import Timer
from textual.widgets import Input

from .first_frame import ENTER, FirstFrame

LARGEST = 100_000
"""Most terminals cut longer copies silently."""


def copy(app: App[Any], text: str, file: Path | None) -> str:
    """Copy ``text`` to the clipboard and the file, if given; returns the destination in words."""
    short = len(text) <= LARGEST
    if short:
        app.copy_to_clipboard(text)
    if file is None:
        return "to the clipboard" if short else "nowhere: it is too long for a clipboard"
    try:
        file.touch(0o600)  # what models wrote is as private as the database that it comes from
        file.write_text(text, encoding="utf-8", errors="replace")
    except OSError as error:
        reason = error.strerror
        return f"to the clipboard; {file} cannot be written: {reason}" if short else f"nowhere: {file}: {reason}"
    return f"to the clipboard and to {file}" if short else f"to {file}; it is too long for a clipboard"


def continuing(frame: FirstFrame) -> type[LinuxDriver]:
    """A driver that keeps the first frame, and knows the terminal's earlier state."""

    class Continuing(LinuxDriver):
        """Textual's driver, begun on the alternate screen."""

        def write(self, data: str) -> None:
            if data == ENTER and not frame.taken:
                frame.taken = True
            else:
                super().write(data)

        def process_message(self, message: Message) -> None:
            pass_on = partial(super().process_message, message)
            frame.then(pass_on) if isinstance(message, Key) else pass_on()

        def start_application_mode(self) -> None:
            """Later owners of the terminal get its original state."""
            super().start_application_mode()  # type: ignore[no-untyped-call]
            self.attrs_before = frame.attributes

    return Continuing


# A program under `setsid` or `nohup` gets no signal: Textual would reread the end of input and block on writes for
# ever.

_LOOK = 1000
"""Milliseconds: some systems report no lost terminal."""


def end_with_terminal(terminal: int) -> None:
    """End this process as SIGHUP does once the descriptor's other end is gone.

    In a thread, as the event loop may be blocked on a write. Nothing is cleaned up. Does nothing if the system cannot
    watch terminals.
    """
    if hasattr(select, "poll"):
        threading.Thread(target=_wait, args=(terminal,), name="hangup", daemon=True).start()


def _wait(terminal: int) -> None:
    watched = select.poll()
    watched.register(terminal, 0)  # a hangup is always told
    while not (told := watched.poll(_LOOK)):
        pass
    if told[0][1] & select.POLLHUP:  # else the system cannot watch this kind of file
        os.kill(os.getpid(), signal.SIGHUP)
        os._exit(128 + signal.SIGHUP)  # the signal is ignored


# Textual hands every key at once to the focus. Letters of a fast “/watched” would reach the list before the slash has
# moved the focus, and act as commands. Here an early key waits until the message queues from the focus upwards are
# empty.

_ROUNDS = 12
"""A dialog needs three or four to focus its field."""
_PATIENCE = 1.0
"""Seconds: the marked widget may be gone."""


class KeyOrder(App[None]):
    """Handles a fast typist's keys in order."""

    class Climbed(Message):
        """Mark sent to the focus after a key; arrives after all earlier messages."""

    def __init__(self) -> None:
        super().__init__()
        self._under_way = 0
        """Rounds that the mark of the present key may still make; 0: no key is being handled."""
        self._early: deque[Key | Paste] = deque()
        self._patience: Timer | None = None

    @property
    def keys_wait(self) -> bool:
        """True if a key is in progress or held back."""
        return bool(self._early or self._under_way)

    async def on_event(self, event: Event) -> None:
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
