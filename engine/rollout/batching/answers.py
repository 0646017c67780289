"""Carries answers from the sampler's thread to the event loop: those of one step are delivered together.

Waking the loop costs as much as sampling a token, and more where both share a core.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Generic, TypeVar

T = TypeVar("T")


class Answers:
    """Answers that are ready and not delivered yet, and what is to be heard before. The sampler's thread alone uses
    it."""

    def __init__(self) -> None:
        self._ready: list[tuple[asyncio.Future[Any], Any, BaseException | None]] = []
        self._said: list[tuple[asyncio.Future[Any], Callable[[Any], None], Any]] = []

    def put(self, future: asyncio.Future[Any], value: Any, error: BaseException | None) -> None:
        """Keep an answer until the next ``flush``."""
        self._ready.append((future, value, error))

    def say(self, future: asyncio.Future[Any], heard: Callable[[Any], None], value: Any) -> None:
        """With the next ``flush`` let ``heard`` know a part of what the future will be."""
        self._said.append((future, heard, value))

    def flush(self) -> None:
        """Deliver what is ready; what is for callers whose loop is closed is dropped."""
        if self._said:
            said, self._said = self._said, []
            for loop in {future.get_loop() for future, _, _ in said}:
                if not loop.is_closed():
                    loop.call_soon_threadsafe(_tell, [each for each in said if each[0].get_loop() is loop])
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

    def say(self, heard: Callable[[Any], None], value: Any) -> None:
        """Before the call ends, ``heard`` is called with ``value``, in the event loop."""
        self._answers.say(self.future, heard, value)


def _tell(said: list[tuple[asyncio.Future[Any], Callable[[Any], None], Any]]) -> None:
    for future, heard, value in said:
        if not future.done():  # else its caller was cancelled
            heard(value)


def _deliver(ready: list[tuple[asyncio.Future[Any], Any, BaseException | None]]) -> None:
    for future, value, error in ready:
        if future.done():  # its caller was cancelled
            continue
        if error is None:
            future.set_result(value)
        else:
            future.set_exception(error)
