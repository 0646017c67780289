"""Scores of versions as rows on one axis."""

from __future__ import annotations

from hypothesis import given, strategies as st

from marlaas.app.chart.score_rows import ScoreRow, score_rows
from marlaas.app.words.format import cells

ROWS = (ScoreRow("base", "0.25 ± 0.25", 0.25, 0.25), ScoreRow("1@best", "1.00 ± 0.00", 1.0), ScoreRow("1@9", "not yet"))


def text(rows: tuple[ScoreRow, ...], baseline: float | None, width: int, height: int) -> list[str]:
    return ["".join(part for part, _ in runs) for runs in score_rows(rows, baseline, width, height)]


def test_the_best_comes_first_and_what_is_missing_last() -> None:
    assert text(ROWS, 0.75, 42, 8) == [
        "       0.00               1.00",
        "1@best │               ╌    ◆│ 1.00 ± 0.00",
        "base   │├────◆────┤    ╌     │ 0.25 ± 0.25",
        "1@9    │               ╌     │     not yet",
    ]


def test_no_room_no_rows() -> None:
    assert text(ROWS, None, 24, 8) == text(ROWS, None, 60, 1) == []
    assert len(text(ROWS, None, 60, 3)) == 3


@given(
    st.lists(st.tuples(st.floats(-9, 9), st.floats(0, 2)), max_size=6), st.integers(0, 90), st.integers(0, 9),
    st.none() | st.floats(-3, 3),
)  # fmt: skip
def test_rows_fit_whatever_the_scores(scores: list[tuple[float, float]], width: int, height: int, floor: float) -> None:
    rows = tuple(ScoreRow(f"v{place}", f"{one:.2f}", one, error) for place, (one, error) in enumerate(scores))
    shown = text(rows, floor, width, height)
    assert len(shown) <= max(0, height) and all(cells(line) <= width for line in shown)
    assert all(line.count("◆") == 1 for line in shown[1:])
