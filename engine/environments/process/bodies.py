"""The JSON of messages to and from a plugin's process: msgspec reads and writes it, several times as fast as Python.

What comes out is what the standard library would have read, in texts that files and databases can hold. Nothing here
knows what the messages mean.
"""

from __future__ import annotations

from contextlib import suppress
from typing import Any

from msgspec import DecodeError, ValidationError
from msgspec.json import decode, encode

from marlaas.plugins.host import channel
from marlaas.plugins.host.channel import Record

_PLAIN = frozenset((bool, float, int, type(None)))


def decode_body(body: bytes) -> Any:
    """What the JSON of a message says, in texts that files and databases can hold.

    Raises ``ValueError`` and ``RecursionError``.
    """
    if b"\\u" not in body:  # only such an escape can stand for half a character
        try:
            return decode(body)
        except (DecodeError, ValidationError):
            pass  # the standard library reads some more: NaN, numbers without end
    return cleaned(channel.decode_json(body))


def cleaned(value: Any) -> Any:
    """Texts that files and databases can hold: JSON can carry lone surrogates, they cannot, and msgspec raises."""
    if isinstance(value, str):
        return value if value.isascii() else value.encode("utf-8", "replace").decode()
    if isinstance(value, list):
        return [entry if type(entry) in _PLAIN else cleaned(entry) for entry in value]
    if isinstance(value, dict):  # what is plain needs no call: there are many messages
        keys = [key if key.isascii() else cleaned(key) for key in value]
        return {key: e if type(e) in _PLAIN else cleaned(e) for key, e in zip(keys, value.values(), strict=True)}
    return value


def encode_body(record: Record) -> bytes:
    """A message as JSON. Raises ``ValueError`` and ``TypeError``.

    Replies alone, and those without calls: what an author or a model wrote may hold numbers without end, which msgspec
    writes as null.
    """
    if record["op"] == "reply" and not record["tool_calls"]:
        with suppress(UnicodeEncodeError):  # half a character, which a check may answer with
            return encode(record)
    return channel.encode_json(record)
