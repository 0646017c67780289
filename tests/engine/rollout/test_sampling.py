"""Sampling arithmetic against plain definitions, and its independence of the other rows."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.samplers.sampling import choose, uniforms

from .plain import logprobs_of

SIZES = (2, 50, 3000, 32_000, 151_936)
"""Vocabularies below and above the limit between the two ways to draw."""


def some_logits(count: int, vocabulary: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(count, vocabulary)).astype(np.float32) * np.float32(3)


@given(st.integers(0, 2**64 - 1), st.integers(0, 300), st.integers(0, 40), st.integers(0, 40))
def test_noise_depends_on_seed_and_position_alone(seed: int, start: int, skip: int, count: int) -> None:
    whole = uniforms(seed, start, start + skip + count)
    assert np.array_equal(whole[skip:], uniforms(seed, start + skip, start + skip + count))
    assert ((whole >= 0) & (whole < 1)).all()


def test_noise_is_pinned() -> None:
    """Recorded runs must stay repeatable with later versions of numpy."""
    assert uniforms(7, 100, 103).tolist() == [0.3180089334708437, 0.4700340866758427, 0.4912888452594717]
    assert uniforms(7, 0, 1000).mean() == pytest.approx(0.5, abs=0.03)


@pytest.mark.parametrize("vocabulary", SIZES)
@pytest.mark.parametrize("temperature", [1.0, 0.3])
def test_draws_follow_the_running_sum(vocabulary: int, temperature: float) -> None:
    logits, noise = some_logits(20, vocabulary), np.linspace(0, 0.9999, 20)
    tokens, logprobs = choose(logits, np.full(20, temperature), noise)
    scaled = logits.astype(np.float64) / temperature
    distribution = np.exp(scaled - scaled.max(1, keepdims=True))
    distribution /= distribution.sum(1, keepdims=True)
    running = distribution.cumsum(1)
    for row, token in enumerate(tokens):
        assert running[row, token] > noise[row] - 1e-12
        assert token == 0 or running[row, token - 1] <= noise[row] + 1e-12
    np.testing.assert_allclose(logprobs, np.log(distribution[np.arange(20), tokens]), atol=1e-6)
    np.testing.assert_allclose(logprobs_of(logits, tokens, temperature), logprobs, atol=1e-6)


@pytest.mark.parametrize("vocabulary", SIZES)
def test_temperature_0_is_greedy_with_logprobs_of_1(vocabulary: int) -> None:
    logits = some_logits(6, vocabulary)
    tokens, logprobs = choose(logits, np.array([0.0, 1.0] * 3), np.full(6, 0.5))
    assert tokens[::2].tolist() == logits.argmax(1)[::2].tolist()
    np.testing.assert_allclose(logprobs, logprobs_of(logits, tokens, 1.0), atol=1e-6)
    np.testing.assert_allclose(logprobs_of(logits, tokens, 0.0), logprobs_of(logits, tokens, 1.0), atol=0)


@pytest.mark.parametrize("vocabulary", SIZES)
def test_a_row_is_the_same_to_the_last_bit_in_any_batch(vocabulary: int) -> None:
    logits, noise = some_logits(30, vocabulary), np.random.default_rng(1).random(30)
    temperatures = np.array([1.0, 0.7, 0.0] * 10)
    tokens, logprobs = choose(logits, temperatures, noise)
    for rows in ([4], [29, 3], list(range(10, 25))):
        some_tokens, some_logprobs = choose(logits[rows], temperatures[rows], noise[rows])
        assert some_tokens.tobytes() == tokens[rows].tobytes()
        assert some_logprobs.tobytes() == logprobs[rows].tobytes()


@pytest.mark.parametrize("vocabulary", SIZES)
def test_the_ends_of_the_noise_stay_inside_the_vocabulary(vocabulary: int) -> None:
    logits = np.full((3, vocabulary), -np.inf, np.float32)
    logits[:, 1] = 2.0
    noise = np.array([0.0, 0.5, 1 - 2.0**-53])
    tokens, logprobs = choose(logits, np.ones(3), noise)
    assert tokens.tolist() == [1, 1, 1] and logprobs.tolist() == [0.0, 0.0, 0.0]
