"""Event files are what TensorBoard's own writer makes of the same scalars, byte for byte, and can be read back."""

from __future__ import annotations

import math
import struct

from hypothesis import given, strategies as st

from marlaas.app.operations.results import Scalars, crc32c, event_file, masked_crc

RECORD = bytes.fromhex(
    "33000000000000000ca72056090000000000448f4010ac022a250a130a0c747261696e2f726577617264150000003f0a0e0a076576616c2fc3bc"
    "150000c07f03f64e6d"
)
"""What tensorboard 2.21's ``RecordWriter`` writes for the event of the test below."""


def test_a_record_as_the_original_writes_it() -> None:
    scalars = Scalars(300, 1000.5, {"train/reward": 0.5, "eval/ü": math.nan})
    assert event_file([scalars], 1000.5).endswith(RECORD)


def test_the_checksum_of_the_standard() -> None:
    assert crc32c(b"123456789") == 0xE3069283  # the check value of CRC-32C
    assert crc32c(bytes(32)) == 0x8A9136AA  # RFC 3720, appendix B.4


def records(data: bytes) -> list[bytes]:
    """The data of each record; both checksums must hold."""
    found = []
    while data:
        (length,), crc = struct.unpack("<Q", data[:8]), struct.unpack("<I", data[8:12])
        payload, rest = data[12 : 12 + length], data[12 + length :]
        assert crc == (masked_crc(data[:8]),) and struct.unpack("<I", rest[:4]) == (masked_crc(payload),)
        found.append(payload)
        data = rest[4:]
    return found


@given(
    st.lists(
        st.tuples(st.integers(0, 10**7), st.dictionaries(st.text(max_size=9), st.floats(), max_size=4)), max_size=4
    )
)
def test_every_event_is_a_sound_record(rows: list[tuple[int, dict[str, float]]]) -> None:
    scalars = [Scalars(step, 2.0, values) for step, values in rows]
    events = records(event_file(scalars, 1.0))
    assert events[0].endswith(b"brain.Event:2") and len(events) == 1 + len(rows)
    assert all(event.startswith(b"\x09" + struct.pack("<d", 2.0) + b"\x10") for event in events[1:])
