"""Runs work in a thread for the newest request alone: one runs at a time, and requests in between are dropped.

For work that takes long enough to be felt while every key press asks for it. Answers come back in the event loop.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from textual.widget import Widget

Wish = TypeVar("Wish")
Answer = TypeVar("Answer")


class Latest(Generic[Wish, Answer]):
    """``work`` runs in a thread and must not raise; ``then`` gets its answer, as long as the widget is there."""

    def __init__(self, owner: Widget, work: Callable[[Wish], Answer], then: Callable[[Answer], None]) -> None:
        self._owner = owner
        self._work = work
        self._then = then
        self._wishes: list[Wish] = []
        self._busy = False

    def ask(self, wish: Wish) -> None:
        """Work on this as soon as the present work is done; earlier requests that still wait are dropped."""
        self._wishes[:] = [wish]
        if not self._busy:
            self._busy = True
            self._owner.run_worker(self._run())

    async def _run(self) -> None:
        try:
            while self._wishes:
                answer = await asyncio.to_thread(self._work, self._wishes.pop())
                if self._owner.is_attached and self._owner.is_running:  # what is being removed has lost some children
                    self._then(answer)
        finally:
            self._busy = False
