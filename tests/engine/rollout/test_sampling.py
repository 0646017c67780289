"""Sampling arithmetic against plain definitions, and its independence of the other rows."""

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.samplers.batching.turn import check
from marlaas.engine.samplers.options import Wishes
from marlaas.engine.samplers.protocol import SampleRequest
from marlaas.engine.samplers.sampling import (
    WHOLE,
    Truncation,
    choose,
    likeliest,
    logprobs_under,
    penalise,
    truncate,
    uniforms,
)

from ...seldom import seldom
from .plain import kept_tokens, logprobs_of

SIZES = (2, 3000, 151_936)
"""Vocabularies of less than a chunk, of a few, of many."""


def some_logits(count: int, vocabulary: int, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=(count, vocabulary)) * spread).astype(np.float32)


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
@pytest.mark.parametrize("temperature", [1.0, seldom(0.3)])
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
def test_the_ends_of_the_noise_stay_inside_the_vocabulary(vocabulary: int) -> None:
    logits = np.full((3, vocabulary), -np.inf, np.float32)
    logits[:, 1] = 2.0
    noise = np.array([0.0, 0.5, 1 - 2.0**-53])
    tokens, logprobs = choose(logits, np.ones(3), noise)
    assert tokens.tolist() == [1, 1, 1] and logprobs.tolist() == [0.0, 0.0, 0.0]


SOME = (
    Truncation(top_k=1),
    Truncation(top_k=40),
    Truncation(top_p=0.001),
    Truncation(top_p=0.9),
    Truncation(min_p=0.05),
    Truncation(min_p=1.0),
    Truncation(top_k=20, top_p=0.8, min_p=0.02),
    Truncation(top_k=10**6, top_p=0.999),
    WHOLE,
)


def kept(logits: np.ndarray, truncations: list[Truncation], temperatures: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(np.isfinite(row)).tolist() for row in truncate(logits, temperatures, truncations)]


@pytest.mark.parametrize(
    ("vocabulary", "temperature"), [(2, 1.0), (3000, 1.0), (3000, 0.5), (3000, 2.0), seldom(151_936, 0.5)]
)
def test_the_kept_sets_are_those_of_the_definition(vocabulary: int, temperature: float) -> None:
    logits, temperatures = some_logits(len(SOME), vocabulary), np.full(len(SOME), temperature)
    for row, one, found in zip(logits, SOME, kept(logits, list(SOME), temperatures), strict=True):
        assert found == kept_tokens(row, one, temperature)


@given(
    st.lists(st.integers(-6, 6), min_size=1, max_size=12),
    st.builds(Truncation, st.integers(0, 13), st.floats(0.001, 1.0), st.floats(0.0, 1.0)),
)
def test_ties_are_kept_together_and_the_likeliest_always(values: list[int], one: Truncation) -> None:
    """Equal logits are both kept or both left out, in whatever order they stand."""
    logits = np.array([values], np.float32)
    (found,) = kept(logits, [one], np.ones(1))
    assert {values[place] for place in found}.isdisjoint(v for n, v in enumerate(values) if n not in found)
    assert max(range(len(values)), key=values.__getitem__) in found
    if one.top_k == 1:
        assert {values[place] for place in found} == {max(values)}


def test_the_order_of_the_filters() -> None:
    """Top-p is of what min-p and top-k left: probabilities 0.4, 0.3, 0.2, 0.1, of the first two 4/7 and 3/7."""
    logits = np.log(np.array([[0.4, 0.3, 0.2, 0.1]], np.float32))
    for one, expected in (
        (Truncation(top_p=0.6), [0, 1]),
        (Truncation(top_p=0.55, top_k=2), [0]),
        (Truncation(top_p=0.55, min_p=0.7), [0]),
        (Truncation(top_p=0.75), [0, 1, 2]),
        (Truncation(top_p=0.75, min_p=0.4), [0, 1]),
        (Truncation(top_p=0.75, min_p=0.6), [0, 1]),
    ):
        assert kept(logits, [one], np.ones(1)) == [expected], one
    # at temperature 1/2 the ratios are squared: 0.3 is 9/16 as likely as 0.4
    assert kept(logits, [Truncation(min_p=0.6)], np.full(1, 0.5)) == [[0]]


@pytest.mark.parametrize("vocabulary", [2, 3000, seldom(151_936)])
def test_logprobs_are_of_what_was_drawn_from(vocabulary: int) -> None:
    logits, one, noise = some_logits(8, vocabulary), Truncation(20, 0.8, 0.02), np.linspace(0, 0.9999, 8)
    tokens, logprobs = choose(logits, np.full(8, 0.7), noise, [one] * 8)
    for row, token, logprob in zip(logits, tokens, logprobs, strict=True):
        own = kept_tokens(row, one, 0.7)
        weights = np.exp((row[own].astype(np.float64) - row.max()) / 0.7)
        assert logprob == pytest.approx(np.log(weights[own.index(token)] / weights.sum()), abs=1e-5)


@pytest.mark.parametrize("vocabulary", SIZES)
@pytest.mark.parametrize("spread", [3.0, 0.01])
def test_a_row_is_cut_to_the_same_bits_in_any_batch(vocabulary: int, spread: float) -> None:
    """Flat rows, which need more of the likeliest to be sorted, change nothing for others."""
    logits, noise = some_logits(27, vocabulary, spread), np.random.default_rng(1).random(27)
    logits[::2] *= 100
    truncations, temperatures = list(SOME) * 3, np.array([1.0, 0.7, 0.0] * 9)
    tokens, logprobs = choose(logits, temperatures, noise, truncations)
    for rows in ([4], [26, 3], list(range(10, 25))):
        cuts = [truncations[row] for row in rows]
        some_tokens, some_logprobs = choose(logits[rows], temperatures[rows], noise[rows], cuts)
        assert some_tokens.tobytes() == tokens[rows].tobytes()
        assert some_logprobs.tobytes() == logprobs[rows].tobytes()


def test_rows_without_a_cut_keep_their_bits() -> None:
    """Training beside an evaluation; and greedy turns, which take the likeliest with its usual log-probability."""
    logits, noise, temperatures = some_logits(4, 3000), np.full(4, 0.6), np.array([1.0, 1.0, 0.0, 1.0])
    plain = choose(logits, temperatures, noise)
    cut = choose(logits, temperatures, noise, [WHOLE, Truncation(1), Truncation(1), WHOLE])
    for one, other in zip(plain, cut, strict=True):
        assert one[[0, 2, 3]].tobytes() == other[[0, 2, 3]].tobytes()
    assert cut[1][1] == 0.0


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("vocabulary", [3, 3000])
def test_a_row_that_is_no_number_changes_no_other(vocabulary: int, bad: float) -> None:
    """The adapter of one tenant may have diverged; its neighbours in the call are another's."""
    logits, heats, noise = some_logits(2, vocabulary), np.full(2, 0.7), np.full(2, 0.6)
    for cut in (None, *SOME):
        found = []
        for value in (0.0, bad):
            logits[1] = value
            with np.errstate(invalid="ignore", divide="ignore"):
                drawn = choose(logits, heats, noise, [cut, cut] if cut else None)
                near, _ = likeliest(logits, heats, 3)
            found.append([each[0].tobytes() for each in (*drawn, near.tokens, near.logprobs)])
            assert 0 <= drawn[0][1] < vocabulary
        assert found[0] == found[1]


@pytest.mark.parametrize(
    "one", [Truncation(-1), Truncation(0, 0.0), Truncation(0, 1.1), Truncation(0, 1.0, -0.1), Truncation(0, 1.0, 1.1)]
)
def test_what_makes_no_sense_is_refused(one: Truncation) -> None:
    tokens = np.array([1], np.int32)
    with pytest.raises(ValueError, match="it must"):
        check(SampleRequest("a", "v", tokens, 1, 1.0, (), 0, truncation=one), tokens[:0], False, 9, 9)


def tied_logits(count: int, vocabulary: int) -> np.ndarray:
    """Many of them equal."""
    drawn = np.random.default_rng(vocabulary).normal(size=(count, vocabulary)) * 3
    return drawn.round(1).astype(np.float32)


@pytest.mark.parametrize("vocabulary", (1, 3000, 151_936))
@pytest.mark.parametrize("count", [0, 20])
def test_they_are_those_of_a_plain_sort(vocabulary: int, count: int) -> None:
    logits = tied_logits(5, vocabulary)
    logits[1, max(1, vocabulary // 3) :] = -np.inf
    heats = np.array([1.0, 0.7, 0.0, 2.0, 1.0])
    found, totals = likeliest(logits, heats, count)
    wanted = min(count, vocabulary)
    assert found.tokens.shape == found.logprobs.shape == (5, wanted)
    for row, heat in enumerate(heats):
        order = np.argsort(-logits[row], kind="stable")[:wanted]
        assert found.tokens[row].tolist() == order.tolist()
        for token, logprob in zip(found.tokens[row], found.logprobs[row], strict=True):
            expected = logprobs_of(logits[row : row + 1], np.array([token]), heat)[0]
            assert logprob == pytest.approx(expected, abs=1e-5)
    last = np.full(5, 0, np.int32)
    expected = [logprobs_of(logits[row : row + 1], last[:1], heat)[0] for row, heat in enumerate(heats)]
    np.testing.assert_allclose(logprobs_under(logits, heats, totals, last), expected, atol=1e-5)


VOCABULARY = 12

tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=30)

penalties = st.floats(-2, 2)


@given(tokens, penalties, penalties)
def test_they_are_as_defined(reply: list[int], presence: float, frequency: float) -> None:
    row = np.linspace(-3, 3, VOCABULARY, dtype=np.float32)
    expected, counts = row.astype(np.float64), Counter(reply)
    for token in range(VOCABULARY):
        expected[token] -= presence * (token in counts) + frequency * counts[token]
    penalise(row, Wishes(presence_penalty=presence, frequency_penalty=frequency), counts)
    np.testing.assert_allclose(row, expected, atol=1e-4)
