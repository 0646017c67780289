"""How late the loop of a process is: a timer of its own says so, while anything is under way."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

EVERY = 0.1
"""Seconds between two calls of the timer."""


class Lateness:
    """The most seconds by which a loop was late."""

    def __init__(self, loop: asyncio.AbstractEventLoop, playing: Callable[[], bool]) -> None:
        """``playing``: whether anything is under way; the timer stops when nothing is."""
        self._loop = loop
        self._playing = playing
        self._due: float | None = None
        self._most = 0.0

    def watch(self) -> None:
        """Something has begun."""
        if self._due is None:
            self._again()

    def take(self) -> float:
        """The most since the last call, a call of the timer that is due now included; any thread may ask."""
        most, self._most = self.most, 0.0
        return most

    @property
    def most(self) -> float:
        """What ``take`` would return."""
        due = self._due
        return max(self._most, 0.0 if due is None else self._loop.time() - due)

    def _again(self) -> None:
        self._due = self._loop.time() + EVERY
        self._loop.call_at(self._due, self._called)

    def _called(self) -> None:
        due, self._due = self._due, None
        if due is not None:
            self._most = max(self._most, self._loop.time() - due)
        if self._playing():
            self._again()
