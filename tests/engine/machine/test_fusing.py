"""Which policies share a pass: those by which it gains, by times that are learnt as they are; waits are bounded."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.machine.trainers import GAIN, LEAST_WAIT, MOST, WAIT, PassTimes, Piece, Shape, joins, patience
from marlaas.engine.trainer.protocol import PolicyConfig

SHAPE, OTHER = Shape(16, kl=False, entropy=False), Shape(64, kl=True, entropy=False)

times = st.builds(lambda *parts: parts, *(st.floats(1e-4, 10.0) for _ in range(2)), st.floats(1e-6, 1e-2))
"""Fixed seconds of a pass, those of a further policy in it, and those of a token."""


def learnt(first: float, further: float, token: float, shape: Shape = SHAPE, noise: float = 0.0) -> PassTimes:
    """From passes of one to four policies of 10 to 5,000 tokens each."""
    found, draw = PassTimes(), np.random.default_rng(0)
    for number in range(60):
        policies = 1 + number % 4
        pieces = [Piece(shape, int(draw.integers(10, 5000))) for _ in range(policies)]
        seconds = first + (policies - 1) * further + token * sum(piece.tokens for piece in pieces)
        found.learn(pieces, seconds * (1 + noise * draw.normal()))
    return found


@given(times)
def test_times_are_learnt_as_they_are(true: tuple[float, float, float]) -> None:
    found = learnt(*true)
    for count, tokens in ((1, 100), (1, 4000), (3, 2000), (8, 1000)):
        expected = true[0] + (count - 1) * true[1] + count * tokens * true[2]
        # the belief from before has a thousandth of the weight of a pass
        assert found.seconds([Piece(SHAPE, tokens)] * count) == pytest.approx(expected, rel=0.1)


def test_noise_of_a_tenth_changes_no_decision_that_is_clear() -> None:
    cheap, dear = learnt(0.03, 0.001, 1e-5, noise=0.1), learnt(0.001, 0.0009, 1e-3, noise=0.1)
    assert joins([Piece(SHAPE, 500)], Piece(SHAPE, 500), cheap, 1.0)
    assert not joins([Piece(SHAPE, 500)], Piece(SHAPE, 500), dear, 10.0)


@given(times, st.lists(st.integers(1, 5000), min_size=2, max_size=6), st.floats(0.0, 20.0))
def test_a_pass_is_shared_only_where_it_gains(
    true: tuple[float, float, float], tokens: list[int], bound: float
) -> None:
    found = learnt(*true)
    *taken, piece = [Piece(SHAPE, count) for count in tokens]
    if joins(taken, piece, found, bound):
        together, alone = found.seconds([*taken, piece]), found.seconds([piece])
        assert together <= found.seconds(taken) + (1 - GAIN) * alone * (1 + 1e-9)
        assert together - found.seconds(taken[:1]) <= bound * (1 + 1e-9)
    else:
        saved = found.seconds(taken) + found.seconds([piece]) - found.seconds([*taken, piece])
        extra = found.seconds([*taken, piece]) - found.seconds(taken[:1])
        assert saved < GAIN * found.seconds([piece]) or extra > bound


@given(times, st.integers(1, 5000), st.floats(0.0, 5.0), st.floats(0.0, 5.0))
def test_who_joins_with_less_patience_joins_with_more(
    true: tuple[float, float, float], tokens: int, bound: float, more: float
) -> None:
    found, piece = learnt(*true), Piece(SHAPE, tokens)
    assert not joins([piece], piece, found, bound) or joins([piece], piece, found, bound + more)


def test_of_a_shape_that_was_never_measured_none_joins() -> None:
    found = learnt(1.0, 0.0, 1e-6)
    assert not joins([Piece(OTHER, 10)], Piece(SHAPE, 10), found, 100.0)
    assert not joins([Piece(SHAPE, 10)], Piece(OTHER, 10), found, 100.0)
    assert found.of(OTHER) is None and found.seconds([Piece(OTHER, 10)]) == 0.0


def test_passes_over_nothing_or_of_several_shapes_teach_nothing() -> None:
    found = PassTimes()
    found.learn([Piece(SHAPE, 0)], 1.0)
    found.learn([Piece(SHAPE, 10), Piece(OTHER, 10)], 1.0)
    found.learn([Piece(SHAPE, 10)], 0.0)
    assert found.of(SHAPE) is None and found.of(OTHER) is None


def test_no_pass_has_more_policies_than_that() -> None:
    found = learnt(100.0, 0.0, 1e-6)
    assert joins([Piece(SHAPE, 1)] * (MOST - 1), Piece(SHAPE, 1), found, 1e3)
    assert not joins([Piece(SHAPE, 1)] * MOST, Piece(SHAPE, 1), found, 1e3)


def test_a_machine_that_changes_is_learnt_anew() -> None:
    """Where shared passes turn out to gain nothing, none is made; much later one is tried again."""
    found = learnt(1.0, 1.0, 1e-4)
    assert not joins([Piece(SHAPE, 100)], Piece(SHAPE, 100), found, 100.0)
    for number in range(400):
        found.learn([Piece(SHAPE, 100 + number % 7)], 1.0)
    assert joins([Piece(SHAPE, 100)], Piece(SHAPE, 100), found, 100.0)


def test_patience_is_a_share_of_the_time_between_two_calls() -> None:
    assert patience(()) == LEAST_WAIT == patience((0.01, 0.02))
    assert patience((4.0, 8.0)) == WAIT * 6.0


def test_a_shape_is_what_decides_the_time_of_a_token() -> None:
    assert Shape.of(PolicyConfig(rank=8, kl=0.1, learning_rate=1.0)) == Shape(8, kl=True, entropy=False)
    assert Shape.of(PolicyConfig(rank=8, entropy=0.1)) == Shape(8, kl=False, entropy=True)
