"""The contrast of colours is the web's, and text is moved no further than it must be."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from marlaas.app.tui.frame.looks import Colour, contrast, legible

BLACK, WHITE = (0, 0, 0), (255, 255, 255)
colours = st.tuples(*[st.integers(0, 255)] * 3)


@pytest.mark.parametrize(
    ("one", "other", "ratio"),
    [
        (BLACK, WHITE, 21.0),
        (WHITE, BLACK, 21.0),
        (WHITE, WHITE, 1.0),
        ((118, 118, 118), WHITE, 4.54),  # WCAG's own examples of grey and of pure colours
        ((119, 119, 119), WHITE, 4.48),
        ((255, 0, 0), WHITE, 4.0),
        ((0, 0, 255), WHITE, 8.59),
    ],
)
def test_the_contrast_is_that_of_the_standard(one: Colour, other: Colour, ratio: float) -> None:
    assert contrast(one, other) == pytest.approx(ratio, abs=0.005)  # the standard gives two digits


@given(colours, colours)
def test_any_text_becomes_legible_on_any_ground(text: Colour, ground: Colour) -> None:
    shown = legible(text, ground)
    assert contrast(shown, ground) >= 4.5
    if contrast(text, ground) >= 4.5:
        assert shown == text


def test_text_is_moved_as_little_as_possible_and_keeps_its_side() -> None:
    grey, dark, light = (90, 90, 90), (22, 25, 29), (250, 250, 250)
    assert 4.5 <= contrast(legible(grey, dark), dark) < 5 and legible(grey, dark) > grey
    pale = (200, 210, 220)
    assert 4.5 <= contrast(legible(pale, light), light) < 5 and legible(pale, light) < pale
