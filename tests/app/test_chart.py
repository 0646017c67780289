"""The chart as characters."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlaas.app.chart import Series, draw
from marlaas.app.format import cells

EXPECTED = """\
 1.00 ┤                ⣀⠤⠒⠉
      │            ⣀⠤⠒⠉    
 0.50 ┤        ⣀⠤◆⠉        
      │╌╌╌╌⣀⠤⠒⠉╌╌╌╌╌╌╌╌╌╌╌╌
 0.00 ┤⣀⠤⠒⠉                
      └────────────────────
       0                  8
"""


def text(series: Series, width: int, height: int) -> list[str]:
    return ["".join(run for run, _ in line) for line in draw(series, width, height)]


def test_a_straight_line() -> None:
    lines = text(Series(curve=[(0, 0.0), (8, 1.0)], points=[(4, 0.5)], floor=0.25, end=8), 27, 7)
    assert lines == EXPECTED.splitlines()


def test_nothing_to_draw() -> None:
    assert len(text(Series(), 40, 10)) == 10
    assert text(Series(curve=[(1, 0.5)]), 5, 10) == [""] * 10
    assert text(Series(curve=[(1, 0.5)]), 40, 2) == [""] * 2


def test_a_young_curve_has_a_quarter_of_the_steps() -> None:
    assert text(Series(curve=[(1, 0.1), (9, 0.3)], end=60), 40, 8)[-1].endswith(" 15")
    assert text(Series(curve=[(1, 0.1), (29, 0.3)], end=60), 40, 8)[-1].endswith(" 30")
    assert text(Series(curve=[(1, 0.1), (70, 0.3)], end=60), 40, 8)[-1].endswith(" 70")


numbers = st.floats(allow_nan=True, allow_infinity=True)


@pytest.mark.filterwarnings("error")
@given(
    st.lists(st.tuples(st.integers(0, 500), numbers), max_size=30),
    st.lists(st.tuples(st.integers(0, 500), numbers), max_size=5),
    st.none() | numbers,
    st.integers(0, 90),
    st.integers(0, 30),
)
def test_any_numbers_fit_any_room(
    curve: list[tuple[float, float]], points: list[tuple[float, float]], floor: float | None, width: int, height: int
) -> None:
    lines = text(Series(sorted(curve), points, floor, 60), width, height)
    assert len(lines) == height and all(cells(line) <= width for line in lines)
