"""What travels between the engine and a worker: pickled messages in length-prefixed frames.

Both ends are our own processes over a private socketpair that no other account can reach, so pickle is safe here, and
protocol 5 keeps numpy arrays as plain bytes. Knows no sockets' origin, no worker class and no asyncio task. Standard
library only: the child reads its first frame before it may import numpy.
"""

from __future__ import annotations

import asyncio
import pickle
import struct
from dataclasses import dataclass
from typing import Any

HEADER = struct.Struct("<Q")
"""Bytes of the pickle that follows."""


@dataclass(frozen=True)
class Start:
    """First frame to the child: what to build."""

    factory: str
    """``"package.module:Class"``"""
    kwargs: dict[str, Any]


@dataclass(frozen=True)
class Ready:
    """First frame back: the object stands and takes calls."""


@dataclass(frozen=True)
class Call:
    """Run one async method of the worker's object."""

    id: int
    method: str
    args: tuple[Any, ...]


@dataclass(frozen=True)
class Answer:
    """The value that a call returned."""

    id: int
    value: Any


@dataclass(frozen=True)
class Failed:
    """What a call raised; with id 0, what the start-up raised."""

    id: int
    kind: str
    """Name of a ``MarlaasError`` subclass, ``"ValueError"``, or any other class, which becomes ``CallFailed``."""
    message: str
    hint: str
    traceback: str


Message = Start | Ready | Call | Answer | Failed


def pack(message: Message) -> bytes:
    """One frame: eight bytes of length, then the pickle."""
    body = pickle.dumps(message, protocol=5)
    return HEADER.pack(len(body)) + body


async def read(reader: asyncio.StreamReader) -> Message | None:
    """The next message, or None once the other end is gone (also in the middle of a frame)."""
    try:
        (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
        message: Message = pickle.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    return message
