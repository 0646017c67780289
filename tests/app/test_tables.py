"""Tables at terminals of any width: what people compare by stays in sight."""

from __future__ import annotations

import pytest

from marlaas.app.output import table
from marlaas.app.text.format import cells

HEADERS = ("ID", "TENANT", "TASK", "ENVIRONMENT", "STATE", "STEP", "REWARD", "HELD-OUT", "REASON")
RIGHT = ("ID", "STEP", "REWARD", "HELD-OUT")
ROWS = [
    "12|physics-lab|learning_rate=0.0003, rank=16|arithmetic/sums|● running|12/60|0.41|0.52 ± 0.03|More prompts help.",
    "7|bio|plain|facts|✓ done|60/60|1.00|1.00 ± 0.00|",
]


@pytest.mark.parametrize("width", [80, 100, 120, 400])
def test_rewards_and_scores_are_in_sight(width: int) -> None:
    lines = table(HEADERS, [row.split("|") for row in ROWS], RIGHT, width)
    assert all(cells(line) <= width for line in lines)
    for number in ("12/60", "0.41", "0.52 ± 0.03", "1.00 ± 0.00", "running"):
        assert any(number in line for line in lines), number
    assert ("learning_rate=0.0003, rank=16" in lines[1]) == (width == 400)


def test_columns_of_numbers_give_way_last() -> None:
    """Four tasks side by side: each has a column."""
    rows = [("environment", *(f"arithmetic/sums of {number}" for number in range(4)))]
    headers = ("KEY", *(f"{number} policy" for number in range(4)))
    head, line = table(headers, rows, headers[1:], 80)
    assert all(f"{number} policy" in head for number in range(4)) and cells(line) <= 80
    assert table(headers, rows, headers[1:])[1].endswith("arithmetic/sums of 3"), "into a file nothing is cut"
