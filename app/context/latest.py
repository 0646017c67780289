"""Work for a thread of which only the newest wish counts: at most one runs at a time, and those between are left out.

There is a wish with every key press; answers come back in the event loop. For what takes long enough to be felt.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Generic, TypeVar

from textual.widget import Widget

Wish = TypeVar("Wish")
Answer = TypeVar("Answer")


class Latest(Generic[Wish, Answer]):
    """``work`` runs in a thread and must not raise; ``then`` gets its answer. Ends with its owner."""

    def __init__(self, owner: Widget, work: Callable[[Wish], Answer], then: Callable[[Answer], None]) -> None:
        self._owner = owner
        self._work = work
        self._then = then
        self._wishes: list[Wish] = []
        self._busy = False

    def ask(self, wish: Wish) -> None:
        """Work on this as soon as the work under way is done; earlier wishes that still wait are forgotten."""
        self._wishes[:] = [wish]
        if not self._busy:
            self._busy = True
            self._owner.run_worker(self._run())

    async def _run(self) -> None:
        try:
            while self._wishes:
                answer = await asyncio.to_thread(self._work, self._wishes.pop())
                if self._owner.is_attached:
                    self._then(answer)
        finally:
            self._busy = False
