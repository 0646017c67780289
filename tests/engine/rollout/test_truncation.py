"""Top-k, top-p and min-p against plain definitions, and their independence of the other rows."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.samplers.batching.turn import check
from marlaas.engine.samplers.protocol import SampleRequest
from marlaas.engine.samplers.sampling import WHOLE, Cuts, Truncation, choose

from .contract.keeping import kept_tokens

SIZES = (2, 50, 3000, 151_936)
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


def some_logits(count: int, vocabulary: int, spread: float = 3.0) -> np.ndarray:
    return (np.random.default_rng(0).normal(size=(count, vocabulary)) * spread).astype(np.float32)


def kept(logits: np.ndarray, truncations: list[Truncation], temperatures: np.ndarray) -> list[list[int]]:
    return [np.flatnonzero(np.isfinite(row)).tolist() for row in Cuts(truncations, temperatures).of(logits)]


@pytest.mark.parametrize("vocabulary", SIZES)
@pytest.mark.parametrize("temperature", [1.0, 0.5, 2.0])
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


@pytest.mark.parametrize("vocabulary", SIZES)
def test_logprobs_are_of_what_was_drawn_from(vocabulary: int) -> None:
    logits, one, noise = some_logits(40, vocabulary), Truncation(20, 0.8, 0.02), np.linspace(0, 0.9999, 40)
    tokens, logprobs = choose(logits, np.full(40, 0.7), noise, Cuts([one] * 40, np.full(40, 0.7)))
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
    tokens, logprobs = choose(logits, temperatures, noise, Cuts(truncations, temperatures))
    for rows in ([4], [26, 3], list(range(10, 25))):
        cuts = Cuts([truncations[row] for row in rows], temperatures[rows])
        some_tokens, some_logprobs = choose(logits[rows], temperatures[rows], noise[rows], cuts)
        assert some_tokens.tobytes() == tokens[rows].tobytes()
        assert some_logprobs.tobytes() == logprobs[rows].tobytes()


def test_rows_without_a_cut_keep_their_bits() -> None:
    """Training beside an evaluation; and greedy turns, which take the likeliest with its usual log-probability."""
    logits, noise, temperatures = some_logits(4, 3000), np.full(4, 0.6), np.array([1.0, 1.0, 0.0, 1.0])
    plain = choose(logits, temperatures, noise)
    cut = choose(logits, temperatures, noise, Cuts([WHOLE, Truncation(1), Truncation(1), WHOLE], temperatures))
    for one, other in zip(plain, cut, strict=True):
        assert one[[0, 2, 3]].tobytes() == other[[0, 2, 3]].tobytes()
    assert cut[1][1] == 0.0


@pytest.mark.parametrize(
    "one", [Truncation(-1), Truncation(0, 0.0), Truncation(0, 1.1), Truncation(0, 1.0, -0.1), Truncation(0, 1.0, 1.1)]
)
def test_what_makes_no_sense_is_refused(one: Truncation) -> None:
    tokens = np.array([1], np.int32)
    with pytest.raises(ValueError, match="it must"):
        check(SampleRequest("a", "v", tokens, 1, 1.0, (), 0, truncation=one), tokens[:0], False, 9, 9)
