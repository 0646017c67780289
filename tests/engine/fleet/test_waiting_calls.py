"""Sums of what waits say what a look at each call would say, at a cost that does not grow with the calls."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from unittest.mock import patch

import pytest
from hypothesis import given, settings, strategies as st

from marlaas.engine.fleet.trainers import PassTimes, Piece, Shape, WaitingCalls

from ...examples import examples

SHAPES = (Shape(8, False, False), Shape(16, False, False), Shape(16, True, False))


@dataclass(eq=False)
class Waits:
    kind: str
    piece: Piece | None


def times_of(seed: int) -> PassTimes:
    """Learnt for two of the three shapes."""
    random, times = Random(seed), PassTimes()
    for _ in range(20):
        for shape in SHAPES[:2]:
            tokens = random.randint(1, 5000)
            times.learn([Piece(shape, tokens)], 0.05 + 0.0003 * tokens * random.uniform(0.8, 1.2))
    return times


@settings(max_examples=examples(), deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 4), st.integers(0, 5000)), max_size=60), st.integers(0, 9))
def test_sums_say_what_each_call_would(moves: list[tuple[bool, int, int]], seed: int) -> None:
    waiting, there, times, usual = WaitingCalls(), list[Waits](), times_of(seed), {"step": 0.25}
    for adds, which, tokens in moves:
        if adds or not there:
            call = Waits(("step", "open")[which - 3], None) if which > 2 else Waits("", Piece(SHAPES[which], tokens))
            there.append(call)
            waiting.add(call)
            waiting.add(call)  # twice is once
        else:
            call = there.pop(tokens % len(there))
            waiting.discard(call)
            waiting.discard(call)
    each = [times.seconds([one.piece]) if one.piece else usual.get(one.kind, 0.0) for one in there]
    assert waiting.seconds(times, usual) == pytest.approx(sum(each))


def test_the_number_of_calls_does_not_matter() -> None:
    times, looks = times_of(1), []
    with patch.object(PassTimes, "of", lambda self, shape: looks.append(shape)):
        for many in (10, 1000):
            waiting = WaitingCalls()
            for number in range(many):
                waiting.add(Waits("", Piece(SHAPES[number % 2], 100)))
            looks.clear()
            waiting.seconds(times, {})
            assert len(looks) == 2, "one look for each shape"
