"""The likeliest tokens against a plain sort, and their independence of the other rows."""

import numpy as np
import pytest

from marlaas.engine.samplers.sampling import likeliest, logprobs_under

from .plain import logprobs_of

SIZES = (1, 50, 3000, 32_000, 151_936)
"""Vocabularies below and above the limit between the two ways to look."""


def some_logits(count: int, vocabulary: int) -> np.ndarray:
    """Many of them equal."""
    drawn = np.random.default_rng(vocabulary).normal(size=(count, vocabulary)) * 3
    return drawn.round(1).astype(np.float32)


@pytest.mark.parametrize("vocabulary", SIZES)
@pytest.mark.parametrize("count", [0, 1, 20])
def test_they_are_those_of_a_plain_sort(vocabulary: int, count: int) -> None:
    logits = some_logits(5, vocabulary)
    logits[1, max(1, vocabulary // 3) :] = -np.inf
    heats = np.array([1.0, 0.7, 0.0, 2.0, 1.0])
    found, totals = likeliest(logits, heats, count)
    wanted = min(count, vocabulary)
    assert found.tokens.shape == found.logprobs.shape == (5, wanted)
    for row, heat in enumerate(heats):
        order = sorted(range(vocabulary), key=lambda token: (-logits[row, token], token))[:wanted]
        assert found.tokens[row].tolist() == order
        for token, logprob in zip(found.tokens[row], found.logprobs[row], strict=True):
            expected = logprobs_of(logits[row : row + 1], np.array([token]), heat)[0]
            assert logprob == pytest.approx(expected, abs=1e-5)
    last = np.full(5, 0, np.int32)
    expected = [logprobs_of(logits[row : row + 1], last[:1], heat)[0] for row, heat in enumerate(heats)]
    np.testing.assert_allclose(logprobs_under(logits, heats, totals, last), expected, atol=1e-5)


@pytest.mark.parametrize("vocabulary", [50, 3000])
def test_other_rows_change_no_bit(vocabulary: int) -> None:
    logits, heats = some_logits(9, vocabulary), np.linspace(0.3, 1.5, 9)
    whole, totals = likeliest(logits, heats, 7)
    for row in range(9):
        one = slice(row, row + 1)
        own, total = likeliest(logits[one], heats[one], 7)
        assert own.logprobs.tobytes() == whole.logprobs[one].tobytes() and total.tobytes() == totals[one].tobytes()


def test_of_no_position_there_are_none() -> None:
    found, totals = likeliest(np.empty((0, 50), np.float32), np.empty(0), 3)
    assert found.tokens.shape == (0, 3) and totals.shape == (0,)
