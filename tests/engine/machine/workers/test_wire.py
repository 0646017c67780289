"""Frames: whole or not at all, one for each turn of the loop, and arrays in them as the bytes that they are."""

from __future__ import annotations

import asyncio
import pickle
import pickletools

import numpy as np
import pytest
from numpy.typing import NDArray

from marlaas.engine.machine.workers.wire import HEADER, LINGER, Answer, Call, Message, Outbox, pack, read
from marlaas.engine.samplers.protocol import SampleRequest, SampleResult
from marlaas.engine.trainer.protocol import TrainGroup, TrainSequence

TOKENS = np.arange(1000, dtype=np.int32)
LOGPROBS = np.linspace(-3, 0, 1000, dtype=np.float32)
MASK = np.ones(1000, np.uint8)


async def test_frames_are_read_whole_or_not_at_all() -> None:
    call = Call(1, "m", (np.arange(5),))
    reader = asyncio.StreamReader()
    reader.feed_data(pack(call) + pack(Answer(1, "v"), Answer(2, "w")) + pack(Answer(3, "lost"))[:-1])
    reader.feed_eof()
    (first,) = await read(reader)
    assert isinstance(first, Call) and np.array_equal(first.args[0], np.arange(5))
    assert await read(reader) == (Answer(1, "v"), Answer(2, "w"))
    assert await read(reader) == ()


@pytest.mark.parametrize(
    "message",
    [
        Call(1, "generate", (SampleRequest("c", "v", TOKENS, 8, 1.0, (2,), 7),)),
        Answer(1, SampleResult(TOKENS, LOGPROBS, "stop", "v", "sum")),
        Call(2, "accumulate", ("p", (TrainGroup(0, (TrainSequence(TOKENS, MASK, LOGPROBS, 0.5),)),))),
        Answer(3, LOGPROBS),
    ],
)
def test_arrays_travel_as_bytes(message: Message) -> None:
    """However long the arrays are, only the bytes grow: no number is pickled by itself."""
    body = pack(message)[HEADER.size :]
    arrays = [array for array in (TOKENS, LOGPROBS, MASK) if array.tobytes() in body]
    assert arrays
    assert len(body) - sum(array.nbytes for array in arrays) < 1000
    assert len(list(pickletools.genops(body))) < 200


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.int64).reshape(2, 3),
        np.arange(6, dtype=np.int32)[::2],
        np.arange(3, dtype=">i4"),
        np.array(["a", "b"]),
        np.array([True, False]),
        np.empty(0, np.float32),
        np.float32(0.5),
    ],
)
def test_arrays_of_any_kind_come_back_and_can_be_written_to(array: NDArray[np.generic]) -> None:
    (answer,) = pickle.loads(pack(Answer(1, array))[HEADER.size :])
    assert answer.value.dtype == array.dtype and np.array_equal(answer.value, array)
    assert not isinstance(array, np.ndarray) or answer.value.flags.writeable


class Wire:
    """What an outbox writes and refuses."""

    def __init__(self) -> None:
        self.frames: list[tuple[Message, ...]] = []
        self.refused: list[Message] = []
        self.outbox = Outbox(lambda frame: self.frames.append(pickle.loads(frame[HEADER.size :])), self.refuse)

    def refuse(self, message: Message, error: Exception) -> None:
        assert isinstance(error, (pickle.PicklingError, AttributeError, TypeError))
        self.refused.append(message)


async def test_the_messages_of_one_turn_leave_together() -> None:
    wire = Wire()
    wire.outbox.send(Answer(1, "a"))
    wire.outbox.send(Answer(2, "b"))
    assert wire.frames == []
    await asyncio.sleep(0)
    wire.outbox.send(Answer(3, "c"))
    await asyncio.sleep(0)
    assert wire.frames == [(Answer(1, "a"), Answer(2, "b")), (Answer(3, "c"),)]


async def test_a_message_without_haste_joins_the_next_one() -> None:
    wire = Wire()
    wire.outbox.send(Call(None, "a", ()), haste=False)
    await asyncio.sleep(0)
    assert wire.frames == []
    wire.outbox.send(Call(1, "b", ()))
    await asyncio.sleep(0)
    assert wire.frames == [(Call(None, "a", ()), Call(1, "b", ()))]
    wire.outbox.send(Call(None, "c", ()), haste=False)
    async with asyncio.timeout(50):
        while len(wire.frames) < 2:
            await asyncio.sleep(LINGER)
    assert wire.frames[1:] == [(Call(None, "c", ()),)]


async def test_what_cannot_be_pickled_is_refused_alone() -> None:
    wire = Wire()
    good, bad, other = Answer(1, "a"), Answer(2, lambda: None), Answer(3, "c")
    for message in (good, bad, other):
        wire.outbox.send(message)
    await asyncio.sleep(0)
    assert (wire.frames, wire.refused) == ([(good,), (other,)], [bad])
    wire.outbox.send(good)
    await asyncio.sleep(0)
    assert wire.frames[2:] == [(good,)]
