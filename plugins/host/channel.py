"""Messages over a socket: JSON objects, each after its length.

Bytes may be hostile: type and size are checked here, not the meaning.
"""

from __future__ import annotations

import asyncio
import json
import re
import struct
from collections.abc import Callable
from typing import Any, cast

from ..messages import Message, ToolCall
from ..rewards import Transcript

LARGEST_MESSAGE = 4 << 20
"""Bytes: a prompt of a million tokens fits, a flood does not."""
LONGEST_TURN = 0.02
_LENGTH = struct.Struct("<I")
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+"?', re.DOTALL)
"""A JSON text; one without an end takes all bytes, so they are read once."""
_decoder = json.JSONDecoder()
_encoder = json.JSONEncoder(separators=(",", ":"), check_circular=False)

Record = dict[str, Any]


def decode_json(body: bytes) -> Any:
    """Raises ``ValueError`` and ``RecursionError``."""
    return _decoder.decode(body.decode())


def encode_json(record: Record) -> bytes:
    """A message as JSON."""
    return _encoder.encode(record).encode()


class Channel(asyncio.Protocol):
    """One end of the connection."""

    def __init__(
        self,
        on_message: Callable[[Record], None],
        on_close: Callable[[str], None],
        most_values: int | None = None,
        rate: int | None = None,
        decode: Callable[[bytes], Any] = decode_json,
        encode: Callable[[Record], bytes] = encode_json,
    ) -> None:
        """``most_values``: list and object entries of a message; ``rate``: bytes per second after the first ones; None:
        trusted."""
        self._decode = decode
        self._encode = encode
        self._most_values = most_values
        self._rate = rate
        self._credit = float(LARGEST_MESSAGE)
        """Bytes that may be read before the other end has to wait."""
        self._counted = 0.0
        self._on_message = on_message
        self._on_close = on_close
        self._received = bytearray()
        self.hasty = False
        """True if messages leave at once, though others may follow in the same turn; any thread may set it."""
        self._outgoing: list[bytes] = []
        self._queued = 0.0
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._reason = ""
        self._closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def connection_lost(self, exc: Exception | None) -> None:
        """Reported once."""
        if not self._closed:
            self._closed = True
            self._on_close(self._reason or (str(exc) if exc else "the other end closed the connection"))

    def data_received(self, data: bytes) -> None:
        if self._rate is not None:
            self._charge(len(data), self._rate)
        received = self._received
        received += data
        start = 0
        while not self._closed and not self._reason and len(received) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(received, start)
            if length > LARGEST_MESSAGE:
                self.close(f"a message of {length} bytes is over the limit of {LARGEST_MESSAGE}")
                break
            stop = start + _LENGTH.size + length
            if len(received) < stop:
                break
            self._deliver(bytes(received[start + _LENGTH.size : stop]))
            start = stop
        del received[:start]

    def send(self, record: Record) -> None:
        """Raises ``ValueError`` if too large.

        Messages of a loop turn leave together, unless it takes long: computing episodes share one.
        """
        body = self._encode(record)
        if len(body) > LARGEST_MESSAGE:
            raise ValueError(f"a message of {len(body)} bytes is over the limit of {LARGEST_MESSAGE}")
        now = self._loop.time()
        if not self._outgoing:
            self._queued = now
            self._loop.call_soon(self.flush)
        self._outgoing.append(_LENGTH.pack(len(body)) + body)
        if self.hasty or now - self._queued > LONGEST_TURN:
            self.flush()

    def flush(self) -> None:
        if self._outgoing and self._transport is not None and not self._closed:
            self._transport.write(b"".join(self._outgoing))
        self._outgoing.clear()

    def close(self, reason: str) -> None:
        """``on_close`` gets the first reason."""
        self._reason = self._reason or reason
        if self._transport is not None:
            self._transport.abort()

    def _charge(self, size: int, rate: int) -> None:
        now = self._loop.time()
        self._credit = min(LARGEST_MESSAGE, self._credit + (now - self._counted) * rate) - size
        self._counted = now
        if self._credit < 0 and self._transport is not None:
            self._transport.pause_reading()
            self._loop.call_later(-self._credit / rate, self._read_on)

    def _read_on(self) -> None:
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def _deliver(self, body: bytes) -> None:
        if self._most_values is not None and crowded(body, self._most_values):
            self.close(f"a message has more than {self._most_values} values")
            return
        try:
            record = self._decode(body)
        except (ValueError, RecursionError) as error:
            self.close(f"a message is no JSON: {type(error).__name__}")
            return
        if not isinstance(record, dict):
            self.close(f"a message is a JSON {type(record).__name__}, not an object")
            return
        self._on_message(record)


def crowded(body: bytes, most: int) -> bool:
    """True if some JSON, unparsed, has more than ``most`` entries."""
    if _entries(body) <= most:
        return False
    texts = (body.count(b'"') - body.count(b'\\"')) // 2
    return texts > 2 * most or _entries(_TEXT.sub(b"", body)) > most  # an entry has a key and a value


def _entries(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def message_record(message: Message) -> Record:
    """A message as JSON, without empty fields."""
    record: Record = {"role": message.role, "content": message.content}
    if message.name:
        record["name"] = message.name
    if message.tool_calls:
        record["tool_calls"] = [{"name": call.name, "arguments": call.arguments} for call in message.tool_calls]
    return record


def read_message(record: Record) -> Message:
    """The message of such a record."""
    calls = tuple(ToolCall(call["name"], call["arguments"]) for call in record.get("tool_calls", ()))
    return Message(record["role"], record["content"], record.get("name", ""), calls)


def transcript_record(transcript: Transcript) -> Record:
    """Lists of messages by agent."""
    return {agent: [message_record(message) for message in said] for agent, said in transcript.agents.items()}


def read_transcript(record: Record) -> Transcript:
    """The transcript of such a record."""
    return Transcript({agent: tuple(map(read_message, said)) for agent, said in record.items()})
