"""Which component of a mixture each group belongs to: by the shares, whatever was asked before."""

from __future__ import annotations

from collections import Counter
from fractions import Fraction

import pytest
from hypothesis import given, strategies as st

from marlaas.engine.spec.mixture import Drawing

SHARES = st.lists(st.decimals("0.01", "10", places=2).map(float), min_size=1, max_size=5)


@given(SHARES, st.integers(1, 300))
def test_each_has_its_share_to_within_one_group(shares: list[float], groups: int) -> None:
    drawing, total = Drawing(shares), sum(Fraction(str(share)) for share in shares)
    drawn = [drawing.of(number) for number in range(groups)]
    counts = Counter[int]()
    for number, (place, before) in enumerate(drawn, 1):
        assert before == counts[place]
        counts[place] += 1
        assert all(abs(counts[p] - number * Fraction(str(s)) / total) < 1 for p, s in enumerate(shares))
    again = Drawing(shares)
    assert again.of(groups - 1) == drawn[-1], "a restart draws the same"


@pytest.mark.parametrize(
    ("shares", "places"),
    [([1], [0] * 6), ([1, 1], [0, 1] * 3), ([2, 1], [0, 1, 0] * 2), ([0.5, 0.25, 0.25], [0, 1, 2, 0] * 2)],
)
def test_a_few_by_hand(shares: list[float], places: list[int]) -> None:
    drawing = Drawing(shares)
    assert [drawing.of(number)[0] for number in range(len(places))] == places
