from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.report import pages, results, tables
from benchmarks.report.figures import Row, Section, Series
from benchmarks.report.machine import Machine
from benchmarks.report.results import Result

MACHINE = Machine("Some CPU", 2, 24.2, 106.4, 0.031, 0.25)
PAIR = Row("a step", "ms", Series((10.0, 12.0, 11.0)), Series((33.0, 33.0, 33.0)), "TRL 1.16", goal="3 ×")
ALONE = Row("an | episode", "ms", Series((0.25,)), goal="under 0.3")


def result(*rows: Row, name: str = "one_task", date: str = "2026-11-20 17:00") -> Result:
    section = Section(name, f"Title of {name}", "So and so often.", rows, "It fell short.")
    return Result(section, MACHINE, date, "abc1234", {"torch": "2.13.0"})


def test_a_ratio_is_taken_pair_by_pair() -> None:
    ratio = PAIR.ratio
    assert ratio is not None
    assert ratio.values == pytest.approx((3.3, 2.75, 3.0))
    more = Row("rate", "1/s", Series((30.0,)), Series((10.0,)), higher_is_better=True)
    assert more.ratio == Series((3.0,))
    assert ALONE.ratio is None


def test_sides_of_different_length_have_no_ratio() -> None:
    with pytest.raises(ValueError):
        _ = Row("a step", "ms", Series((1.0,)), Series((1.0, 2.0))).ratio


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (-0.25, "-0.250"), (0.0312, "0.0312"), (9.876, "9.88"), (123.4, "123"), (12345.6, "12,346")],
)  # fmt: skip
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert tables.number(value) == text


def test_a_table_shows_medians_spread_ratio_and_goal() -> None:
    lines = tables.table(result(PAIR, ALONE).section).splitlines()
    assert lines[2] == "| a step | ms | 11.0 [10.0–12.0] | 33.0 TRL 1.16 | 3.00 × [2.75–3.30] | 3 × |"
    assert lines[3] == "| an / episode | ms | 0.250 |  |  | under 0.3 |"


def test_a_table_leaves_empty_columns_out() -> None:
    assert tables.table(result(ALONE).section).splitlines()[0] == "| what | unit | marlaas | goal |"


def test_a_page_names_machine_commit_and_remarks() -> None:
    text = pages.sections([result(PAIR)], "../BENCHMARKS.md")["one_task"]
    assert text.startswith("# Title of one_task\n") and "[Benchmarks](../BENCHMARKS.md)" in text
    assert "Measured on 2026-11-20 17:00 UTC at commit abc1234: Some CPU, 2 cores, 24 GiB." in text
    assert "106 GFLOP/s" in text and "a noise of 3%" in text and "With torch 2.13.0." in text
    assert "**Method.** So and so often." in text and "It fell short." in text


def test_the_front_lists_sections_and_their_rows() -> None:
    text = pages.front([result(PAIR), result(ALONE, name="engine")], "there/")
    assert text.index("- [Title of one_task](there/one_task.md): 1 row\n") < text.index("- [Title of engine]")
    assert "- [On a card](there/gpu.md): not measured yet" in text


def test_the_front_says_when_nothing_is_measured() -> None:
    assert "Nothing has been measured" in pages.front([], "")


def test_results_survive_their_file_and_keep_the_order_of_names(tmp_path: Path) -> None:
    kept = [result(PAIR, ALONE), result(ALONE, name="engine")]
    for each in reversed(kept):
        results.save(each, tmp_path)
    assert results.load(tmp_path, ["missing", "one_task", "engine"]) == kept


@pytest.mark.torch
def test_a_stamp_has_date_commit_and_versions(tmp_path: Path) -> None:
    stamped = results.stamp(result(ALONE).section, MACHINE, tmp_path)
    assert stamped.commit == "unknown", "not a repository"
    assert {"python", "torch", "marlaas"} <= stamped.versions.keys()
