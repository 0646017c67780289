"""A sampler's adapter versions, and the answers to its callers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar

from ...adapters.statefile import checksum, read_state
from ...errors import AdapterError
from ...faults import Point, reach
from ...models.find import BaseModel
from .context import Arrays

# Answers reach the event loop once per step: waking it costs as much as sampling a token.

T = TypeVar("T")


class Answers:
    """Undelivered results, in order. Only for the sampler's thread."""

    def __init__(self) -> None:
        self._waiting: list[tuple[asyncio.Future[Any], Callable[[Any], None], Any]] = []

    def put(self, future: asyncio.Future[Any], receive: Callable[[Any], None], value: Any) -> None:
        self._waiting.append((future, receive, value))

    def flush(self) -> None:
        waiting, self._waiting = self._waiting, []
        for loop in {future.get_loop() for future, _, _ in waiting}:
            if not loop.is_closed():
                loop.call_soon_threadsafe(_deliver, [each for each in waiting if each[0].get_loop() is loop])


def _deliver(waiting: list[tuple[asyncio.Future[Any], Callable[[Any], None], Any]]) -> None:
    for future, receive, value in waiting:
        if not future.done():  # else its caller was cancelled
            receive(value)


class Answer(Generic[T]):
    """For one caller: made in its event loop, given once, on the thread."""

    def __init__(self, answers: Answers) -> None:
        self.future: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._answers = answers
        self.flush = answers.flush

    def give(self, value: T) -> None:
        self._answers.put(self.future, self.future.set_result, value)

    def fail(self, error: BaseException) -> None:
        self._answers.put(self.future, self.future.set_exception, error)

    def stream(self, to: Callable[[Any], None], value: Any) -> None:
        self._answers.put(self.future, to, value)


class Adapters(Protocol):
    """Loads and frees adapters, like a ``Context``."""

    def load_adapter(self, adapter: Arrays, alpha: float) -> int:
        """Add an adapter; returns its handle. Raises ``AdapterError`` if it does not fit."""

    def free_adapter(self, adapter: int) -> None:
        """Free an adapter's memory."""


@dataclass
class Version:
    """One loaded adapter."""

    name: str
    checksum: str
    handle: int
    users: int = 0
    retired: bool = False


class Versions:
    """All versions of one sampler, freed after their last request."""

    def __init__(self, base: BaseModel, adapters: Adapters) -> None:
        self._base = base
        self._adapters = adapters
        self._versions: dict[str, Version] = {}
        self._checksums: dict[str, str] = {}

    def load(self, name: str, path: Path) -> str:
        """Returns the checksum. Raises ``AdapterError`` if the name stands for other bytes, or the adapter does not
        fit."""
        reach(Point.SAMPLER_LOADING)
        state = read_state(path, moments=False)
        found = checksum(state.adapter)
        if self._checksums.get(name, found) != found:
            raise AdapterError(f"The version name {name!r} stands for other bytes; names are never used again.")
        if name in self._versions:
            self._versions[name].retired = False
            return found
        if state.header.base and state.header.base != self._base.fingerprint:
            raise AdapterError(
                f"was trained on the base {state.header.base}; this sampler serves {self._base.fingerprint}.",
                where=str(path),
            )
        handle = self._adapters.load_adapter(state.adapter, state.header.alpha)
        self._versions[name] = Version(name, found, handle)
        self._checksums[name] = found
        reach(Point.SAMPLER_LOADED)
        return found

    def serving(self, name: str) -> Version:
        """Raises ``AdapterError`` if never loaded or retired."""
        version = self._versions.get(name)
        if version is None or version.retired:
            why = "has been retired" if name in self._checksums else "was never loaded"
            raise AdapterError(f"The adapter version {name!r} {why}.")
        return version

    def retire(self, name: str) -> None:
        version = self.serving(name)
        version.retired = True
        self._free_if_unused(version)
        reach(Point.SAMPLER_RETIRED)

    def leave(self, version: Version) -> None:
        version.users -= 1
        self._free_if_unused(version)

    def close(self) -> None:
        for version in self._versions.values():
            self._adapters.free_adapter(version.handle)
        self._versions.clear()

    def _free_if_unused(self, version: Version) -> None:
        if version.retired and version.users == 0:
            self._adapters.free_adapter(version.handle)
            del self._versions[version.name]
