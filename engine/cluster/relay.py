"""What travels between the bridge and a node host: events of children, gathered into numbered batches. Pure.

Several batches are under way at the same time, so that a long link costs its delay once and not once a message. Ray may
deliver them in another order: each has a number, and waits for those before it. A piece is small enough that Ray sends
it inside the call: what children say never needs room in an object store.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

PIECE = 90_000
"""Bytes of one argument or result of a call; from 100 kB on Ray puts it into an object store."""
WINDOW = 8
"""Batches that may be under way in one direction."""
OVERHEAD = 200
"""About how many bytes an event takes beside its data."""


@dataclass(frozen=True)
class Begin:
    """Start a child with the program, cores and variables that it would have on the engine's machine."""

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
    """The child has ended; nothing of it follows."""

    child: int
    status: int | None
    """Its exit status, negative for a signal; None where nobody knows."""
    reason: str = ""
    """Why nobody knows."""


Event: TypeAlias = Begin | Data | Close | Kill | Born | Printed | Ended


def batch(waiting: deque[Event], limit: int = PIECE) -> tuple[Event, ...]:
    """Take as many of the first events as fit into a piece, at least one if there is any; large data go in parts."""
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
    """About how many bytes an event takes in a call."""
    return OVERHEAD + (len(event.data) if isinstance(event, Data | Printed) else 0)


def gathered(events: Sequence[Event]) -> list[tuple[Event, ...]]:
    """All events in batches of a piece each. Pure."""
    waiting = deque(events)
    batches = []
    while waiting:
        batches.append(batch(waiting))
    return batches


class InOrder:
    """Hands numbered batches on in the order of their numbers, which begin with 0."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, tuple[Event, ...]] = {}

    def accept(self, number: int, events: tuple[Event, ...]) -> Iterator[Event]:
        """The events that are due once this batch is there; a batch that came before is dropped."""
        if number >= self._next:
            self._early[number] = events
        due: list[Event] = []
        while self._next in self._early:
            due += self._early.pop(self._next)
            self._next += 1
        return iter(due)
