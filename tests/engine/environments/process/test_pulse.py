"""Whether a process counts as hung, and what its answers may be."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.environments.process.launch import HUNG_AFTER, STILL_AFTER, Pulse, judged
from marlaas.engine.environments.process.wire import Beat, decode_beat


@pytest.fixture
def ends() -> Iterator[tuple[Pulse, socket.socket]]:
    ours, theirs = socket.socketpair()
    pulse = Pulse(ours)
    yield pulse, theirs
    pulse.close()
    theirs.close()


@given(st.floats(0, STILL_AFTER - 1), st.floats(0, 5), st.integers(0, 512))
def test_a_process_without_a_core_is_left_alone(wall: float, computed: float, episodes: int) -> None:
    assert judged(wall, computed, episodes) == ""


def test_what_computes_in_silence_is_hung() -> None:
    assert judged(30.0, HUNG_AFTER, 0) == "hung" and judged(30.0, HUNG_AFTER, 64) == ""
    assert judged(30.0, HUNG_AFTER + 4, 64) == "hung" and judged(STILL_AFTER, 0.0, 64) == "still"


def test_a_score_has_its_own_time_first() -> None:
    assert judged(60.0, 119.0, 1, allowed=60.0) == "" and judged(60.0, 121.0, 1, allowed=60.0) == "hung"


def test_the_newest_answer_counts(ends: tuple[Pulse, socket.socket]) -> None:
    pulse, process = ends
    assert pulse.answer() is None
    pulse.ask()
    assert process.recv(100) == b"?"
    process.sendall(b'{"stubborn":false}\n{"stubborn":true,"asleep":0.5,"holds":["f.py",3]}\n{"stub')
    assert pulse.answer() == Beat(True, 0.5, ("f.py", 3))
    process.sendall(b'born":false}\n')
    assert pulse.answer() == Beat(False)
    assert pulse.answer() is None


@pytest.mark.parametrize(
    "line",
    [b"", b"{}", b"[" * 10_000, b'{"asleep":-1,"stubborn":false}', b'{"asleep":1e999,"stubborn":false}', b"\xff"],
)
def test_what_is_no_answer(line: bytes) -> None:
    assert decode_beat(line) is None


def test_a_flood_of_answers_is_no_burden(ends: tuple[Pulse, socket.socket]) -> None:
    pulse, process = ends
    process.setblocking(False)
    sent = 0
    for _ in range(10_000):
        try:
            sent += process.send(b"x" * 1000)
        except BlockingIOError:
            break
    assert pulse.answer() is None and len(pulse._rest) <= 32 << 10 < sent


def test_a_closed_end_is_no_error(ends: tuple[Pulse, socket.socket]) -> None:
    pulse, process = ends
    process.close()
    pulse.ask()
    assert pulse.answer() is None
