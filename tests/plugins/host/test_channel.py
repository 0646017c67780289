"""Framing: however the bytes arrive, the same messages come out; what is no message ends the connection."""

from __future__ import annotations

import asyncio
import itertools
import json
import socket
import struct

import pytest
from hypothesis import given, strategies as st

from marlaas.plugins.host.channel import LARGEST_MESSAGE, LONGEST_TURN, Channel, Record, crowded


def framed(body: bytes) -> bytes:
    return struct.pack("<I", len(body)) + body


@given(
    st.lists(st.dictionaries(st.text(max_size=3), st.integers(), max_size=3), max_size=5),
    st.lists(st.integers(0, 200), max_size=5),
)
def test_any_cut_gives_the_same_messages(records: list[Record], cuts: list[int]) -> None:
    async def received() -> list[Record]:
        found: list[Record] = []
        channel = Channel(found.append, lambda reason: None)
        stream = b"".join(framed(json.dumps(record).encode()) for record in records)
        edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
        for start, stop in itertools.pairwise(edges):
            channel.data_received(stream[start:stop])
        return found

    assert asyncio.run(received()) == records


@pytest.mark.parametrize(
    ("sent", "says"),
    [
        (framed(b"no json"), "no JSON"),
        (framed(b"\xff\xfe"), "no JSON"),
        (framed(b"[1]"), "a JSON list"),
        (framed(b"[" * 100_000), "no JSON"),
        (struct.pack("<I", LARGEST_MESSAGE + 1), "over the limit"),
    ],
)
async def test_what_is_no_message_ends_the_connection(sent: bytes, says: str) -> None:
    ours, theirs = socket.socketpair()
    reason: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    found: list[Record] = []
    await asyncio.get_running_loop().create_connection(lambda: Channel(found.append, reason.set_result), sock=ours)
    theirs.sendall(sent + framed(b"{}"))
    assert says in await reason
    assert found == []
    theirs.close()


async def test_messages_go_there_and_back() -> None:
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    heard: asyncio.Future[Record] = loop.create_future()
    gone: asyncio.Future[str] = loop.create_future()
    _, here = await loop.create_connection(lambda: Channel(lambda record: None, lambda reason: None), sock=ours)
    await loop.create_connection(lambda: Channel(heard.set_result, gone.set_result), sock=theirs)
    with pytest.raises(ValueError, match="over the limit"):
        here.send({"x": "y" * LARGEST_MESSAGE})
    here.send({"text": "ü\ud800"})
    assert await heard == {"text": "ü\ud800"}
    here.close("done")
    assert "closed" in await gone


async def test_in_haste_nothing_waits_for_its_turn_to_end() -> None:
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    loop = asyncio.get_running_loop()
    _, here = await loop.create_connection(lambda: Channel(lambda record: None, lambda reason: None), sock=ours)
    here.send({"a": 1})
    with pytest.raises(BlockingIOError):
        theirs.recv(100)
    here.hasty = True
    here.send({"b": 2})
    assert theirs.recv(100) == framed(b'{"a":1}') + framed(b'{"b":2}')
    here.close("done")
    theirs.close()


@pytest.mark.parametrize(
    ("body", "counted"),
    [
        (b'{"a":[1,2,{"b":"[,{"}]}', 5),
        (b'{"a":"' + b",[" * 50 + b'"}', 1),
        (b'{"a":"' + b'\\",' * 50 + b'"}', 1),
        (b'{"a":"' + b"\\\\" * 50 + b'",' + b"[]," * 50, 102),
        (b'"' + b",[" * 50, 0),
        (b'"a",' * 50, 50),
        (b"[" * 50, 50),
    ],
)
def test_entries_are_counted_without_reading(body: bytes, counted: int) -> None:
    assert not crowded(body, counted)
    assert counted == 0 or crowded(body, counted - 1)


async def test_a_message_of_too_many_values_is_not_read() -> None:
    """A list within a list for every three bytes would take the loop a second, of which nothing comes."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    reason: asyncio.Future[str] = loop.create_future()
    found: list[Record] = []
    await loop.create_connection(lambda: Channel(found.append, reason.set_result, most_values=100), sock=ours)
    theirs.sendall(framed(b'{"a":[' + b"0," * 90 + b"0]}") + framed(b'{"a":[' + b"[]," * 90 + b"0]}"))
    assert "more than 100 values" in await reason
    assert [len(record["a"]) for record in found] == [91]
    theirs.close()


async def test_who_sends_faster_than_agreed_waits() -> None:
    """What lies in the socket meanwhile is the sender's: here nothing is read beyond the rate."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    found: asyncio.Queue[Record] = asyncio.Queue()
    _, channel = await loop.create_connection(
        lambda: Channel(found.put_nowait, lambda reason: None, rate=LARGEST_MESSAGE), sock=ours
    )
    theirs.setblocking(False)
    began = loop.time()
    body = framed(json.dumps({"text": "x" * (1 << 20)}).encode())
    for _ in range(5):  # the credit is spent behind the fourth; the fifth takes a quarter of a second
        await loop.sock_sendall(theirs, body)
    for _ in range(5):
        await found.get()
    assert loop.time() - began >= 0.2
    channel.close("done")
    theirs.close()


async def test_in_a_long_turn_of_the_loop_nothing_waits_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Episodes that compute follow each other in one turn: each ends at once for who waits for it."""
    ours, theirs = socket.socketpair()
    loop = asyncio.get_running_loop()
    _, channel = await loop.create_connection(lambda: Channel(lambda record: None, lambda reason: None), sock=ours)
    theirs.setblocking(False)
    now = loop.time()
    monkeypatch.setattr(loop, "time", lambda: now)
    for _ in range(3):
        channel.send({"n": 1})
    with pytest.raises(BlockingIOError):
        theirs.recv(1)
    now += 2 * LONGEST_TURN
    channel.send({"n": 2})
    assert theirs.recv(1000) == 3 * framed(b'{"n":1}') + framed(b'{"n":2}')
    channel.close("over")
    theirs.close()
