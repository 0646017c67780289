"""Server-sent events as bytes: a name where the interface has names, and one line of JSON."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import msgspec

HEADERS = {"Content-Type": "text/event-stream; charset=utf-8", "Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
"""Of a stream; the last asks reverse proxies not to hold it back."""
ALIVE = b": \n\n"
"""A comment, which clients ignore, so that nobody takes a stream that waits for a dead one."""


@dataclass(frozen=True)
class Event:
    """One event; without data it is OpenAI's end of a stream."""

    data: dict[str, Any] | None
    name: str = ""


END = Event(None)


def encode(events: Iterable[Event]) -> bytes:
    """The events as they are sent."""
    return b"".join(
        (b"event: " + event.name.encode() + b"\n" if event.name else b"")
        + b"data: "
        + (b"[DONE]" if event.data is None else msgspec.json.encode(event.data))
        + b"\n\n"
        for event in events
    )
