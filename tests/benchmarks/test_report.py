"""What is stored and published of a benchmark: figures, pages, the headline and pictures; nothing noisy is shown."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import ROOT
from benchmarks.__main__ import NAMES, PICTURES, PUBLISHED
from benchmarks.report import pages, results
from benchmarks.report.figures import Row, Section, Series
from benchmarks.report.machine import Machine
from benchmarks.report.pages import MOST, published
from benchmarks.report.pictures import Curve, Curves, described, number, svg
from benchmarks.report.results import Result

SVG = "{http://www.w3.org/2000/svg}"
QUIET = Machine("Some CPU", 2, 24.2, 106.4, 0.03, 0.25)
LOUD = replace(QUIET, noise=0.21)
STEADY = Row("a step: short", "ms", Series((10.0, 10.1, 10.2)), Series((20.0, 20.1, 20.2)), "TRL 1.16")
WILD = Row("a step: long", "ms", Series((10.0, 20.0, 30.0)))
ONCE = Row("an | run", "s", Series((5.0,)), goal="under 6 s")
SCORES = Curves(
    "scores", "Score <by step>", "Both arms end alike.", "step", "score, %",
    (Curve("alone", (0.0, 10.0, 20.0), (5.0, 40.0, 62.5), (4.0, 35.0, 60.0), (6.0, 45.0, 65.0)),
     Curve("at once", (0.0, 10.0, 20.0), (5.0, 39.0, 63.0))),
    rows=("a step: long",),
)  # fmt: skip
SCALING = Curves(
    "scaling", "Ratio", "More tasks gain more.", "tasks", "×", (Curve("ratio", (1, 4, 64), (1, 3, 22)),), True
)


def result(*rows: Row, name: str = "one_task", machine: Machine = QUIET, remarks: str = "It fell short.") -> Result:
    section = Section(name, f"Title of {name}", "So often.", rows, remarks, (SCORES, SCALING))
    return Result(section, machine, "2026-11-20 17:00", "abc1234", {"torch": "2.13.0"})


def test_a_ratio_is_taken_pair_by_pair() -> None:
    pair = Row("a step", "ms", Series((10.0, 12.0, 11.0)), Series((33.0, 33.0, 33.0)))
    assert pair.ratio is not None and pair.ratio.values == pytest.approx((3.3, 2.75, 3.0))
    more = Row("rate", "1/s", Series((30.0,)), Series((10.0,)), higher_is_better=True)
    assert more.ratio == Series((3.0,)) and ONCE.ratio is None
    with pytest.raises(ValueError):
        _ = Row("a step", "ms", Series((1.0,)), Series((1.0, 2.0))).ratio


def test_noise_is_the_width_of_the_inner_deciles() -> None:
    assert Series(tuple(float(value) for value in range(90, 111))).noise == pytest.approx(0.16)
    assert Series((5.0, 5.0)).noise == 0.0
    assert Series((-1.0, 0.0, 1.0)).noise == float("inf")
    assert Series((5.0,)).noise is None


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (-0.25, "-0.250"), (0.0312, "0.0312"), (9.876, "9.88"), (123.4, "123"), (12345.6, "12,346")],
)  # fmt: skip
def test_figures_have_three_digits(value: float, text: str) -> None:
    assert number(value) == text


def test_a_table_shows_medians_spread_ratio_and_goal() -> None:
    lines = pages.table(result(STEADY, ONCE).section).splitlines()
    assert lines[2] == "| a step: short | ms | 10.1 [10.0–10.2] | 20.1 [20.0–20.2] TRL 1.16 | 1.99 × [1.98–2.00] |  |"
    assert lines[3] == "| an / run | s | 5.00 |  |  | under 6 s |"
    assert pages.table(result(ONCE).section).splitlines()[0] == "| what | unit | marlaas | goal |"


def test_a_noisy_row_and_its_picture_are_left_out() -> None:
    shown = published(result(STEADY, WILD, ONCE))
    assert shown.section.rows == (STEADY, ONCE) and shown.left_out == (WILD,)
    assert shown.reason == "**Left out**, because it was measured with more than 20% noise: a step: long (80.0%)."
    page = pages.sections([result(STEADY, WILD)], "BENCHMARKS.md")["one_task"]
    assert shown.reason in page and "| a step: long |" not in page and "20.0 [10.0–30.0]" not in page
    assert set(pages.pictures([result(STEADY)])) == {"scores", "scaling"}
    assert set(pages.pictures([result(STEADY, WILD)])) == {"scaling"}


def test_a_noisy_machine_publishes_only_what_is_no_time() -> None:
    noisy = result(STEADY, WILD, machine=LOUD)
    assert published(replace(noisy, section=replace(noisy.section, timed=False))).section.rows == (STEADY,)
    page = pages.sections([result(STEADY, machine=LOUD)], "BENCHMARKS.md")["one_task"]
    assert "Nothing of this section is published: the machine had a noise of 21%" in page
    assert "a step" not in page and "It fell short." not in page and pages.pictures([noisy]) == {}


def test_results_survive_their_file_and_keep_the_order(tmp_path: Path) -> None:
    stored = [result(STEADY, ONCE), result(ONCE, name="scaling")]
    for each in reversed(stored):
        results.save(each, tmp_path)
    assert results.load(tmp_path, ["missing", "one_task", "scaling"]) == stored
    lines = (tmp_path / "one_task.json").read_text(encoding="utf-8").splitlines()
    assert sum("More tasks gain more." in line for line in lines) == 1


def test_every_pick_of_the_headline_is_measured() -> None:
    """Of a section that has been published: a new one may be picked from before that."""
    stored = {each.section.name: each.section.rows for each in results.load(PUBLISHED / "data", NAMES)}
    for pick in pages.PICKS:
        assert pick.section in NAMES
        if pick.section in stored:
            row = pick.of(stored[pick.section])
            assert row and row.theirs, pick


def test_what_is_published_is_quiet() -> None:
    for each in results.load(PUBLISHED / "data", NAMES):
        shown = published(each).section.rows
        assert not shown or not each.section.timed or each.machine.noise <= MOST
        assert all(row.noise <= MOST for row in shown)


def test_the_published_pages_are_the_writers_own() -> None:
    stored = results.load(PUBLISHED / "data", NAMES)
    written = pages.sections(stored, "../../BENCHMARKS.md", f"../../{PICTURES}")
    assert {path.stem for path in PUBLISHED.glob("*.md")} == written.keys() | {"earlier"}
    assert all((PUBLISHED / f"{name}.md").read_text(encoding="utf-8") == text for name, text in written.items())
    assert (ROOT / "BENCHMARKS.md").read_text(encoding="utf-8") == pages.front(stored, "benchmarks/results/")
    drawn = pages.pictures(stored)
    assert {path.stem: path.read_text(encoding="utf-8") for path in (ROOT / PICTURES).glob("*.svg")} == drawn


def drawn(picture: Curves) -> ElementTree.Element:
    return ElementTree.fromstring(svg(picture))


def lines(root: ElementTree.Element) -> list[ElementTree.Element]:
    """Curves, without what the legend draws."""
    return [path for path in root.iter(f"{SVG}path") if "line" in str(path.get("class")) and "L" in str(path.get("d"))]


def test_a_screen_reader_finds_title_and_figures() -> None:
    root = drawn(SCORES)
    title, words = root.findall(f"{SVG}title")[0], root.findall(f"{SVG}desc")[0]
    assert root.get("role") == "img" and root.get("aria-labelledby") == f"{title.get('id')} {words.get('id')}"
    assert title.text == SCORES.title and words.text == described(SCORES)
    assert "alone: 5.00 at 0, 62.5 at 20." in described(SCORES) and SCORES.text in described(SCORES)


def test_a_picture_fetches_nothing_and_fits_both_modes() -> None:
    text = svg(SCORES)
    assert "prefers-color-scheme:dark" in text
    assert "<script" not in text and "href" not in text and "url(" not in text
    assert text.count("http") == 1, "the name of the format"


@pytest.mark.parametrize("values", [(3.0,), (0.0,), (-1.0, -1.0), (1e-9, 2e-9), (1e6, 3e6)])
def test_any_values_can_be_drawn(values: tuple[float, ...]) -> None:
    places = tuple(float(n) for n in range(len(values)))
    assert "nan" not in svg(Curves("a", "A", "A.", "x", "y", (Curve("a", places, values),)))
