"""Streams to a child on another node, by way of Ray."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

from ..errors import MarlaasError
from ..workers import NOTHING, Template, WorkerHandle, last_line

# Several numbered batches of events are in progress at the same time, so that a long link costs its delay once. Ray may
# reorder them. A piece is small enough that Ray sends it inside the call.

PIECE = 90_000
"""Bytes of one argument or result of a call; from 100 kB on Ray puts it into an object store."""
WINDOW = 8
OVERHEAD = 200


@dataclass(frozen=True)
class Begin:
    """Start a child with its program, cores and variables."""

    child: int
    name: str
    cores: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0


@dataclass(frozen=True)
class Data:
    """Bytes of the child's stream, in either direction."""

    child: int
    data: bytes


@dataclass(frozen=True)
class Close:
    """Close the child's stream, on which it ends."""

    child: int


@dataclass(frozen=True)
class Kill:
    """End the child at once."""

    child: int


@dataclass(frozen=True)
class Born:
    """The child's process is there."""

    child: int
    pid: int


@dataclass(frozen=True)
class Printed:
    """What the child has written to its standard output and error."""

    child: int
    data: bytes


@dataclass(frozen=True)
class Ended:
    """The child has ended; it sends nothing more."""

    child: int
    status: int | None
    """Its exit status, negative for a signal; None if unknown."""
    reason: str = ""


Event: TypeAlias = Begin | Data | Close | Kill | Born | Printed | Ended


def batch(waiting: deque[Event], limit: int = PIECE) -> tuple[Event, ...]:
    """Take the first events that fit into a piece, at least one if there is any; large data go in parts."""
    taken: list[Event] = []
    room = limit
    while waiting and room > 0:
        event = waiting.popleft()
        if isinstance(event, Data | Printed) and len(event.data) > room:
            waiting.appendleft(type(event)(event.child, event.data[room:]))
            event = type(event)(event.child, event.data[:room])
        room -= size(event)
        taken.append(event)
    return tuple(taken)


def size(event: Event) -> int:
    """Bytes of an event in a call, about."""
    return OVERHEAD + (len(event.data) if isinstance(event, Data | Printed) else 0)


def gathered(events: Sequence[Event]) -> list[tuple[Event, ...]]:
    """All events in batches of a piece each."""
    waiting = deque(events)
    batches = []
    while waiting:
        batches.append(batch(waiting))
    return batches


class InOrder:
    """Puts numbered batches into order, from 0."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, tuple[Event, ...]] = {}

    def accept(self, number: int, events: tuple[Event, ...]) -> Iterator[Event]:
        if number >= self._next:
            self._early[number] = events
        due: list[Event] = []
        while self._next in self._early:
            due += self._early.pop(self._next)
            self._next += 1
        return iter(due)


# A child ends once: by its exit, the loss of its node host, the bridge's death, or an unanswered order to kill it.
# Later events are dropped.

SILENCE = 5.0


class RemoteChild:
    """Implements ``workers.child.Child``; its log is on the engine's machine.

    All methods belong to the event loop of the bridge's handle.
    """

    def __init__(self, bridge: WorkerHandle, node: str, begin: Begin, log_path: Path) -> None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self.node = node
        self.pid = 0
        self.returncode: int | None = None
        self.reader = asyncio.StreamReader()
        self._bridge = bridge
        self._number = begin.child
        self._log_path = log_path
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        self._reason = ""
        self._ended = asyncio.Event()
        self._silence: asyncio.TimerHandle | None = None
        self._running = bridge.call("start", node, begin, stream_to=self._receive)
        self._running.add_done_callback(self._end)

    def write(self, data: bytes) -> None:
        self._tell(Data(self._number, data))

    def close(self) -> None:
        self._tell(Close(self._number))

    def kill(self) -> None:
        self._tell(Kill(self._number))
        if not self._ended.is_set() and self._silence is None:
            self._silence = asyncio.get_running_loop().call_later(SILENCE, self._give_up)

    async def wait(self) -> None:
        await self._ended.wait()

    def last_words(self) -> str:
        return self._reason or last_line(self._log_path, self._log_start)

    def _tell(self, event: Data | Close | Kill) -> None:
        if not self._ended.is_set():
            self._bridge.post("tell", event, haste=True)

    def _receive(self, event: Event) -> None:
        if self._ended.is_set():
            return
        if isinstance(event, Data):
            self.reader.feed_data(event.data)
        elif isinstance(event, Born):
            self.pid = event.pid
        elif isinstance(event, Printed):
            with contextlib.suppress(OSError), open(self._log_path, "ab") as log:
                log.write(event.data)

    def _end(self, running: asyncio.Future[Any]) -> None:
        if running.cancelled():
            ended = Ended(self._number, None, "the way to it has ended")
        elif (error := running.exception()) is not None:
            ended = Ended(self._number, None, error.message if isinstance(error, MarlaasError) else str(error))
        else:
            ended = running.result()
        self._settle(ended)

    def _give_up(self) -> None:
        self._settle(Ended(self._number, None, "its node answers nothing"))

    def _settle(self, ended: Ended) -> None:
        if self._ended.is_set():
            return
        if self._silence is not None:
            self._silence.cancel()
        self.returncode, self._reason = ended.status, ended.reason
        self.reader.feed_eof()
        self._ended.set()


numbers = itertools.count(1)


class NodeLauncher:
    """Implements ``workers.Launcher`` for one node, over the bridge."""

    def __init__(
        self,
        bridge: WorkerHandle,
        node: str,
        named: Callable[[dict[str, Any]], dict[str, Any]] = lambda kwargs: kwargs,
    ) -> None:
        self._bridge = bridge
        self._node = node
        self._named = named

    async def start(
        self,
        name: str,
        factory: str,
        kwargs: dict[str, Any],
        cores: tuple[int, ...] = (),
        *,
        log_path: Path,
        environment: Mapping[str, str] = NOTHING,
        nice: int = 0,
        template: Template | None = None,
    ) -> WorkerHandle:
        """Raises ``BaseModelError``, too, if the node does not have the base."""
        there = await self._bridge.call("resolve", self._node, self._named(kwargs))
        begin = Begin(next(numbers), name, cores, dict(environment), nice)
        child = RemoteChild(self._bridge, self._node, begin, log_path)
        return await WorkerHandle.begin(child, name, factory, there, log_path)
