"""Carries answers from the sampler's thread to the event loop: those of one step are delivered together.

Waking the loop costs as much as sampling a token, and more where both share a core.
"""

from __future__ import annotations

import asyncio
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Answers:
    """Answers that are ready and not delivered yet. Only the sampler's thread uses it."""

    def __init__(self) -> None:
        self._ready: list[tuple[asyncio.Future[Any], Any, BaseException | None]] = []

    def put(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        """Keep an answer until the next ``flush``."""
        self._ready.append((future, value, error))

    def flush(self) -> None:
        """Deliver the answers that are ready; those of callers whose loop is closed are dropped."""
        ready, self._ready = self._ready, []
        for loop in {future.get_loop() for future, _, _ in ready}:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, [each for each in ready if each[0].get_loop() is loop])


class Answer(Generic[T]):
    """What one caller waits for: made in its event loop, and given once, on the thread."""

    def __init__(self, answers: Answers) -> None:
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._answers = answers

    def give(self, value: T) -> None:
        """The call returns ``value``."""
        self._answers.put(self.future, value, None)

    def fail(self, error: BaseException) -> None:
        """The call raises ``error``."""
        self._answers.put(self.future, None, error)


def _deliver(ready: list[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for future, value, error in ready:
        if future.done():  # its caller was cancelled
            continue
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
