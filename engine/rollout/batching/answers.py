"""Carries answers from the sampler's thread to the event loop: those of one step are delivered together.

Waking the loop costs as much as sampling a token, and more where both share a core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Answers:
    """Answers that are ready and not delivered yet, and what is streamed before. The sampler's thread alone uses it."""

    def __init__(self) -> None:
        self._ready: list[tuple[asyncio.Future[Any], Any, BaseException | None]] = []
        self._streamed: list[tuple[asyncio.Future[Any], Callable[[Any], None], Any]] = []

    def put(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        """Keep an answer until the next ``flush``."""
        self._ready.append((future, value, error))

    def stream(self, future: asyncio.Future[Any], to: Callable[[Any], None], value: Any) -> None:
        """With the next ``flush`` call ``to`` with a part of what the future will be."""
        self._streamed.append((future, to, value))

    def flush(self) -> None:
        """Deliver what is ready; what is for callers whose loop is closed is dropped."""
        if self._streamed:
            parts, self._streamed = self._streamed, []
            for loop in {future.get_loop() for future, _, _ in parts}:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_stream, [each for each in parts if each[0].get_loop() is loop])
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

    def flush(self) -> None:
        """Deliver what is ready by now, of all callers."""
        self._answers.flush()

    def stream(self, to: Callable[[Any], None], value: Any) -> None:
        """Before the call ends, ``to`` is called with ``value``, in the event loop."""
        self._answers.stream(self.future, to, value)


def _stream(parts: list[tuple[asyncio.Future[Any], Callable[[Any], None], Any]]) -> None:
    for future, to, value in parts:
        if not future.done():  # else its caller was cancelled
            to(value)


def _deliver(ready: list[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for future, value, error in ready:
        if future.done():  # its caller was cancelled
            continue
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
