"""Pictures of a report: well-formed, inside their frame, with words for who cannot see them."""

from __future__ import annotations

import re
from math import inf, nan
from xml.etree import ElementTree

import pytest
from hypothesis import given, strategies as st

from marlaas.app.chart.plot import Curve, Point
from marlaas.app.report.telling import Chart, Line
from marlaas.app.report.writing import NARROW, WIDE, described, svg
from tests.app.filling import HOSTILE

VALUES = st.floats(allow_nan=True, allow_infinity=True)


def chart(values: list[float], large: bool = False, words: str = "what it is") -> Chart:
    curve = Curve(list(range(1, len(values) + 1)), values)
    return Chart("one", words, words, [Line(words, curve)] if values else [], large=large)


def test_words_for_who_cannot_see() -> None:
    one = Chart("a", "A", "What.", [Line("reward", Curve([1, 9], [0.25, 0.5]))], [Point(0, 0.1), Point(9, 0.9)])
    assert described(one) == ("What. reward: 0.25 at step 1, 0.5 at step 9. Held-out: 0.10 at step 0, 0.90 at step 9.")
    root = ElementTree.fromstring(svg(one, alone=True))
    assert [child.text for child in root if child.tag.endswith("desc")] == [described(one)]


@given(st.lists(VALUES, max_size=30), st.booleans())
def test_any_numbers_stay_in_the_frame(values: list[float], large: bool) -> None:
    text = svg(chart(values, large), alone=True)
    ElementTree.fromstring(text)
    width, height = WIDE if large else NARROW
    for path in re.findall(r' d="M([^"]*?)Z?"', text):
        for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path):
            assert 0 <= float(x) <= width and 0 <= float(y) <= height


@pytest.mark.parametrize("values", [[], [nan], [inf, -inf], [1.0], [0.0] * 3, [1e300, -1e300]])
def test_odd_curves(values: list[float]) -> None:
    ElementTree.fromstring(svg(chart(values), alone=True))


def test_a_long_run_makes_a_small_picture() -> None:
    assert len(svg(chart([0.5, 0.7] * 50_000), alone=True)) < 20_000


def test_hostile_names() -> None:
    ElementTree.fromstring(svg(chart([1.0, 2.0], words=HOSTILE), alone=True))
