"""Penalties against their definitions."""

from collections import Counter

import numpy as np
from hypothesis import given, strategies as st

from marlaas.engine.samplers.options import LARGEST_PENALTY, MOST_LIKELIEST, Wishes
from marlaas.engine.samplers.sampling import Said

VOCABULARY = 12
tokens = st.lists(st.integers(0, VOCABULARY - 1), max_size=30)
penalties = st.floats(-2, 2)


@given(tokens, tokens, penalties, penalties, st.floats(0.5, 2))
def test_they_are_as_defined(prompt: list[int], reply: list[int], presence: float, frequency: float, by: float) -> None:
    row = np.linspace(-3, 3, VOCABULARY, dtype=np.float32)
    expected, counts = row.astype(np.float64), Counter(reply)
    for token in range(VOCABULARY):
        if token in prompt or token in counts:
            expected[token] = expected[token] / by if expected[token] > 0 else expected[token] * by
        expected[token] -= presence * (token in counts) + frequency * counts[token]
    said = Said(np.array(prompt, np.int32), 30)
    for token in reply:
        said.add(token)
    said.penalise(row, Wishes(presence_penalty=presence, frequency_penalty=frequency, repetition_penalty=by))
    np.testing.assert_allclose(row, expected, atol=1e-4)


def test_what_makes_no_sense_is_said_in_a_sentence() -> None:
    assert Wishes().problem() == "" and not Wishes().penalised
    assert "likeliest is 21" in Wishes(likeliest=MOST_LIKELIEST + 1).problem()
    assert "frequency_penalty is -101" in Wishes(frequency_penalty=-LARGEST_PENALTY - 1).problem()
    assert "presence_penalty is nan" in Wishes(presence_penalty=float("nan")).problem()
    assert "repetition_penalty is -1" in Wishes(repetition_penalty=-1.0).problem()
