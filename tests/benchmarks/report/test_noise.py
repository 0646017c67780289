"""What is published of results that are noisy: nothing with more than a fifth of noise."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks import ROOT
from benchmarks.__main__ import NAMES, PICTURES, PUBLISHED
from benchmarks.report import headline, pages, results
from benchmarks.report.figures import Row, Section, Series
from benchmarks.report.machine import Machine
from benchmarks.report.noise import MOST, published
from benchmarks.report.results import Result

QUIET = Machine("Some CPU", 2, 24.2, 106.4, 0.03, 0.25)
LOUD = Machine("Some CPU", 2, 24.2, 106.4, 0.21, 0.25)
STEADY = Row("a step: short", "ms", Series((10.0, 10.1, 10.2)), Series((20.0, 20.1, 20.2)), "TRL 1.16")
WILD = Row("a step: long", "ms", Series((10.0, 20.0, 30.0)))
ONCE = Row("a whole run", "s", Series((5.0,)))


def result(*rows: Row, machine: Machine = QUIET, remarks: str = "It fell short.") -> Result:
    return Result(Section("one_task", "One task", "Once.", rows, remarks), machine, "2026-11-20 17:00", "abc", {})


def test_noise_is_the_width_of_the_inner_deciles() -> None:
    assert Series(tuple(float(value) for value in range(90, 111))).noise == pytest.approx(0.16)
    assert Series((5.0, 5.0)).noise == 0.0
    assert Series((-1.0, 0.0, 1.0)).noise == float("inf")
    assert Series((5.0,)).noise is None


def test_a_row_is_as_noisy_as_its_noisiest_side_or_ratio() -> None:
    apart = Row("", "", Series((10.0, 11.0)), Series((11.0, 10.0)))
    assert apart.ratio and apart.noise == apart.ratio.noise
    assert apart.noise > max(apart.ours.noise or 0, apart.theirs.noise if apart.theirs and apart.theirs.noise else 0)


def test_a_percentage_wavers_by_points() -> None:
    """1 to 3 % of a step are told apart from 30 %, though they are three times each other."""
    assert Row("waits", "% of a step", Series((1.0, 2.0, 3.0))).noise == pytest.approx(0.016)
    assert Row("waits", "% of a step", Series((20.0, 40.0, 60.0))).noise > MOST
    against = Row("busy", "%", Series((1.0, 2.0, 3.0)), Series((50.0, 50.0, 50.0)), "inline")
    assert against.ratio and against.noise == against.ratio.noise


def test_the_ends_of_an_interval_are_not_noise() -> None:
    assert Row("difference", "points", Series((-1.0, 0.1, 1.2)), interval=True).noise == 0.0


def test_a_noisy_row_is_left_out_and_named() -> None:
    shown = published(result(STEADY, WILD, ONCE))
    assert shown.section.rows == (STEADY, ONCE)
    assert shown.left_out == (WILD,)
    assert shown.reason == "**Left out**, because it was measured with more than 20% noise: a step: long (80.0%)."
    page = pages.sections([result(STEADY, WILD)], "BENCHMARKS.md")["one_task"]
    assert shown.reason in page and "| a step: long |" not in page and "20.0 [10.0–30.0]" not in page


def test_a_noisy_machine_publishes_what_is_no_time() -> None:
    noisy = result(STEADY, WILD, machine=LOUD)
    assert published(replace(noisy, section=replace(noisy.section, timed=False))).section.rows == (STEADY,)


def test_a_noisy_machine_publishes_nothing() -> None:
    page = pages.sections([result(STEADY, machine=LOUD)], "BENCHMARKS.md")["one_task"]
    assert "Nothing of this section is published: the machine had a noise of 21%" in page
    assert "a step" not in page and "It fell short." not in page


def test_remarks_do_not_show_what_a_row_may_not() -> None:
    theirs = Row("a step: odd, one", "ms", Series((5.0, 5.0, 5.0)), Series((10.0, 20.0, 30.0)), "TRL 1.16")
    lines = ("|  | wall |", "| --- | --- |", "| long | 20.0 |", "| odd, TRL | 20.0 |", "| odd, two | 5.0 |", "Words.")
    shown = published(result(WILD, theirs, remarks="\n".join(lines)))
    assert shown.section.remarks.splitlines() == [lines[0], lines[1], lines[4], lines[5]]


def test_the_headline_leaves_noise_out_and_says_so() -> None:
    step = "a step: prompts of {} tokens, 1 core, staleness 0"
    quiet = Row(step.format(13), "ms", Series((10.0, 10.1)), Series((20.0, 20.3)), "TRL 1.16")
    loud = Row(step.format(256), "ms", Series((10.0, 20.0)), Series((20.0, 20.3)), "TRL 1.16")
    table, below = headline.table([result(quiet, loud)], "there/").split("\n\n")
    assert len(table.splitlines()) == 3
    cells = "| ms | 10.1 [10.0–10.1] | 20.1 [20.0–20.3] TRL 1.16 | 2.00 × [2.00–2.01] | < 1% |"
    assert f"(there/one_task.md) {cells}" in table
    assert "Some CPU, 2 cores" in table
    assert "prompts of 256 tokens](there/one_task.md) (53%)" in below


def test_a_headline_without_rows_is_a_sentence() -> None:
    assert headline.table([result(ONCE)], "") == "None of the rows of this table is published."


def test_every_pick_of_the_headline_is_measured() -> None:
    """Of a section that has been published: a new one may be picked from before that."""
    kept = {each.section.name: each.section.rows for each in results.load(PUBLISHED / "data", NAMES)}
    for pick in headline.PICKS:
        assert pick.section in NAMES
        if pick.section in kept:
            row = pick.of(kept[pick.section])
            assert row and row.theirs, pick


def test_what_is_published_is_quiet() -> None:
    for each in results.load(PUBLISHED / "data", NAMES):
        shown = published(each).section.rows
        assert not shown or not each.section.timed or each.machine.noise <= MOST
        assert all(row.noise <= MOST for row in shown)


def test_the_published_pages_are_the_writers_own() -> None:
    kept = results.load(PUBLISHED / "data", NAMES)
    written = pages.sections(kept, "../../BENCHMARKS.md", f"../../{PICTURES}")
    assert {path.stem for path in PUBLISHED.glob("*.md")} == written.keys()
    assert all((PUBLISHED / f"{name}.md").read_text(encoding="utf-8") == text for name, text in written.items())
    assert (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8") == pages.front(kept, "benchmarks/results/")


def test_the_published_pictures_are_the_writers_own() -> None:
    drawn = pages.pictures(results.load(PUBLISHED / "data", NAMES))
    assert {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / PICTURES).glob("*.svg")} == drawn
