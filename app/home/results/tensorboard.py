"""TensorBoard's event files, written: scalars by step in, the bytes of one file out. Standard library only.

A file is a sequence of records: the length as 8 bytes, its masked CRC-32C, the data, their masked CRC-32C (TensorFlow's
``record_writer.cc``). The data are ``Event`` messages in protobuf's wire format (``event.proto``, ``summary.proto``),
of which a scalar needs five fields. Packages that write them have far more dependencies than that is worth.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
"""Wire types."""
_POLYNOMIAL = 0x82F63B78
"""CRC-32C (Castagnoli), reflected."""


@dataclass(frozen=True)
class Scalars:
    """What was measured at one step."""

    step: int
    created: float
    """Seconds since 1970."""
    values: Mapping[str, float]
    """Values by tag."""


def event_file(scalars: Iterable[Scalars], created: float) -> bytes:
    """A whole event file; ``created`` is the time in its first record."""
    head = _double(1, created) + _text(3, "brain.Event:2")
    return b"".join(map(_record, (head, *map(_event, scalars))))


def _event(scalars: Scalars) -> bytes:
    values = b"".join(_bytes(1, _text(1, tag) + _float(2, value)) for tag, value in scalars.values.items())
    return _double(1, scalars.created) + _key(2, _VARINT) + _varint(scalars.step) + _bytes(5, values)


def _record(data: bytes) -> bytes:
    length = struct.pack("<Q", len(data))
    return length + struct.pack("<I", masked_crc(length)) + data + struct.pack("<I", masked_crc(data))


def _key(field: int, wire_type: int) -> bytes:
    return bytes((field << 3 | wire_type,))


def _varint(value: int) -> bytes:
    groups = []
    while value > 0x7F:
        groups.append(value & 0x7F | 0x80)
        value >>= 7
    return bytes((*groups, value))


def _double(field: int, value: float) -> bytes:
    return _key(field, _FIXED64) + struct.pack("<d", value)


def _float(field: int, value: float) -> bytes:
    try:
        packed = struct.pack("<f", value)
    except OverflowError:  # too large for 32 bits
        packed = struct.pack("<f", float("inf") if value > 0 else float("-inf"))
    return _key(field, _FIXED32) + packed


def _bytes(field: int, value: bytes) -> bytes:
    return _key(field, _BYTES) + _varint(len(value)) + value


def _text(field: int, value: str) -> bytes:
    return _bytes(field, value.encode("utf-8", "replace"))


def masked_crc(data: bytes) -> int:
    """CRC-32C, rotated and shifted as TensorFlow's records want it."""
    crc = crc32c(data)
    return ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF


def crc32c(data: bytes) -> int:
    """CRC-32C (RFC 3720, appendix B.4)."""
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def _remainders() -> Iterator[int]:
    for value in range(256):
        for _ in range(8):
            value = value >> 1 ^ (_POLYNOMIAL if value & 1 else 0)
        yield value


_TABLE = tuple(_remainders())
