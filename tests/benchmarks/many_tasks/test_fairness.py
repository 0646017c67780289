"""What the fairness benchmark reads off the ledger; nothing runs here."""

from __future__ import annotations

import pytest

from benchmarks.many_tasks import fairness
from benchmarks.many_tasks.fairness import BIG, HEAVY, LIGHT, SMALL, Reading, Sums, Window
from benchmarks.report import tables
from benchmarks.report.figures import Section


def sums(one: str, its: float, other: str, others: float) -> Sums:
    return Sums(float, {one: its, other: others})


def window(small: str, large: str) -> Window:
    """Ten seconds in which the small one had a quarter of the seconds and made 5 of 25 steps."""
    first = Reading(100.0, sums(small, 2, large, 2), sums(small, 1, large, 1), sums(small, 5, large, 5))
    last = Reading(110.0, sums(small, 4, large, 8), sums(small, 2, large, 4), sums(small, 10, large, 25))
    return Window(first, last)


def test_shares_are_of_what_was_used_within_the_window() -> None:
    seen = window(LIGHT, HEAVY)
    assert seen.share("rollout", LIGHT) == 0.25 and seen.share("training", HEAVY) == 0.75
    assert seen.busy("rollout") == pytest.approx(0.8) and seen.busy("training") == pytest.approx(0.4)
    assert seen.pace(LIGHT) == 30.0


def test_a_window_without_work_has_no_shares() -> None:
    nothing = Reading(0.0, Sums(float), Sums(float), Sums(float))
    assert Window(nothing, Reading(1.0, Sums(float), Sums(float), Sums(float))).share("rollout", LIGHT) == 0.0


def test_the_section_says_what_is_fair_and_how_busy_it_was() -> None:
    weights, beside = [window(LIGHT, HEAVY)], [window(SMALL, BIG)]
    found = fairness.rows(weights, beside, beside)
    assert [row.ours.values[0] for row in found] == [75.0, 75.0, 25.0, 25.0, 30.0]
    table = tables.table(Section("fairness", "", "", found))
    assert "75 within 10%" in table and "alone" in table
    assert "| weights 1 and 3 | 80% | 40% |" in fairness.remarks(weights, beside)
