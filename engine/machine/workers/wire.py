"""Messages between the engine and its workers: arrays, pickles, failures."""

from __future__ import annotations

import asyncio
import copyreg
import io
import pickle
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from ... import errors
from ...errors import CallFailed, MarlaasError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


# A vector is pickled as bytes and one letter: numpy's pickles cost several times as much. numpy is imported only if
# needed: a child's first frame comes before imports that start threads.

PLAIN = frozenset("bBhHiIlLqQefd?")
"""Numpy's letters; both ends run on one machine."""

Reducers = Mapping[type, Callable[[Any], Any]]
_reducers: dict[type, Callable[[Any], Any]] = {}


def reducers() -> Reducers:
    """For ``Pickler.dispatch_table``; covers arrays once numpy is imported."""
    numpy = sys.modules.get("numpy")
    if numpy is None:
        return copyreg.dispatch_table
    if not _reducers:
        _reducers.update(copyreg.dispatch_table)
        _reducers[numpy.ndarray] = _reduce
    return _reducers


def _reduce(array: NDArray[Any]) -> Any:
    letter = array.dtype.char
    if array.ndim == 1 and letter in PLAIN and array.dtype.isnative:
        return rebuild, (bytearray(array.data), letter)
    return array.__reduce_ex__(5)


def rebuild(data: bytearray, letter: str) -> NDArray[np.generic]:
    """The array, over the memory of ``data``."""
    import numpy

    return numpy.frombuffer(data, letter)


# Pickle is safe: both ends are ours, on a private socketpair.

HEADER = struct.Struct("<Q")
LINGER = 0.005
"""Seconds of a message without haste."""


@dataclass(frozen=True)
class Call:
    """Run one async method; id 0 builds the object."""

    id: int | None
    method: str
    args: tuple[Any, ...]
    streaming: bool = False
    """The method gets the argument ``stream_to``."""


@dataclass(frozen=True)
class Streamed:
    """A streamed value, before its ``Answer``, in order."""

    id: int
    value: Any


@dataclass(frozen=True)
class Answer:
    """The value that a call returned."""

    id: int
    value: Any


@dataclass(frozen=True)
class Failed:
    """A call's error."""

    id: int
    kind: str
    """A ``MarlaasError`` subclass, ``"ValueError"``, or another class, for ``CallFailed``."""
    message: str
    hint: str
    traceback: str


PING = "?"
"""No method of a worker can have this name."""

Message = Call | Streamed | Answer | Failed


def pack(*messages: Message) -> bytes:
    """One frame: eight bytes of length, then the pickle."""
    file = io.BytesIO()
    pickler = pickle.Pickler(file, protocol=5)
    pickler.dispatch_table = reducers()
    pickler.dump(messages)
    body = file.getbuffer()
    return b"".join((HEADER.pack(len(body)), body))


async def read(reader: asyncio.StreamReader) -> tuple[Message, ...]:
    """The messages of the next frame; none once the other end is gone."""
    try:
        (size,) = HEADER.unpack(await reader.readexactly(HEADER.size))
        messages: tuple[Message, ...] = pickle.loads(await reader.readexactly(size))
    except (asyncio.IncompleteReadError, ConnectionError):
        return ()
    return messages


class Outbox:
    """Writes the messages of one loop turn as one frame."""

    def __init__(self, write: Callable[[bytes], None], refuse: Callable[[Message, Exception], None]) -> None:
        """``refuse`` gets a message that cannot be pickled."""
        self._loop = asyncio.get_running_loop()
        self._write = write
        self._refuse = refuse
        self._messages: list[Message] = []
        self._flushing = False

    def send(self, message: Message, haste: bool = True) -> None:
        """Without ``haste`` with the next frame, soon."""
        if haste and not self._flushing:
            self._flushing = True
            self._loop.call_soon(self._flush)
        elif not haste and not self._messages:
            self._loop.call_later(LINGER, self._flush)
        self._messages.append(message)

    def _flush(self) -> None:
        messages, self._messages = self._messages, []
        self._flushing = False
        if not messages:
            return
        try:
            self._write(pack(*messages))
        except Exception as error:
            if len(messages) == 1:
                return self._refuse(messages[0], error)
            for message in messages:
                self._messages = [message]
                self._flush()


def describe(call: int, error: BaseException) -> Failed:
    """The message for an exception."""
    message, hint = (error.message, error.hint) if isinstance(error, MarlaasError) else (str(error), "")
    return Failed(call, type(error).__name__, message, hint, "".join(traceback.format_exception(error)))


def rebuild_error(failed: Failed, worker: str) -> Exception:
    """The exception to raise in the engine, with the child's traceback as a note."""
    known = getattr(errors, failed.kind, None)
    error: Exception
    if isinstance(known, type) and issubclass(known, MarlaasError):
        error = known(failed.message, failed.hint)
    elif failed.kind == "ValueError":
        error = ValueError(failed.message)
    else:
        error = CallFailed(f"Worker {worker} failed: {failed.kind}: {failed.message}", "Its log has the traceback.")
    error.add_note(failed.traceback)
    return error
