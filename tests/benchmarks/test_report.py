"""What is stored and published of a benchmark: figures, pages, the headline and pictures; nothing noisy is shown."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import ROOT
from benchmarks.__main__ import NAMES, PICTURES, PUBLISHED
from benchmarks.report import machine, pages, results
from benchmarks.report.figures import Row, Section, Series
from benchmarks.report.machine import Machine
from benchmarks.report.pages import MOST, published
from benchmarks.report.pictures import COLOURS, Curve, Curves, described, number, svg, ticks
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


def test_a_row_is_as_noisy_as_its_noisiest_side_or_ratio() -> None:
    apart = Row("", "", Series((10.0, 11.0)), Series((11.0, 10.0)))
    assert apart.ratio and apart.noise == apart.ratio.noise
    assert apart.noise > max(apart.ours.noise or 0, apart.theirs.noise if apart.theirs and apart.theirs.noise else 0)
    assert Row("difference", "points", Series((-1.0, 0.1, 1.2)), interval=True).noise == 0.0


def test_a_percentage_varies_by_points() -> None:
    """1 to 3 % of a step differ from 30 %, though they are three times each other."""
    assert Row("waits", "% of a step", Series((1.0, 2.0, 3.0))).noise == pytest.approx(0.016)
    assert Row("waits", "% of a step", Series((20.0, 40.0, 60.0))).noise > MOST


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


def test_a_page_names_machine_commit_and_remarks() -> None:
    text = pages.sections([result(STEADY)], "../BENCHMARKS.md", "../there")["one_task"]
    assert text.startswith("# Title of one_task\n") and "[Benchmarks](../BENCHMARKS.md)" in text
    assert "Measured on 2026-11-20 17:00 UTC at commit abc1234: Some CPU, 2 cores, 24 GiB." in text
    assert "106 GFLOP/s" in text and "a noise of 3%" in text and "With torch 2.13.0." in text
    assert "**Method.** So often." in text and "It fell short." in text
    assert "![Ratio](../there/scaling.svg)\n\nMore tasks gain more." in text


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


def test_remarks_do_not_show_what_a_row_may_not() -> None:
    theirs = Row("a step: odd, one", "ms", Series((5.0, 5.0, 5.0)), Series((10.0, 20.0, 30.0)), "TRL 1.16")
    lines = ("|  | wall |", "| --- | --- |", "| long | 20.0 |", "| odd, TRL | 20.0 |", "| odd, two | 5.0 |", "Words.")
    shown = published(result(WILD, theirs, remarks="\n".join(lines)))
    assert shown.section.remarks.splitlines() == [lines[0], lines[1], lines[4], lines[5]]


def test_the_front_lists_sections_and_the_headline() -> None:
    step = "a step: prompts of {} tokens, 1 core, staleness 0"
    quiet = Row(step.format(13), "ms", Series((10.0, 10.1)), Series((20.0, 20.3)), "TRL 1.16")
    loud = Row(step.format(256), "ms", Series((10.0, 20.0)), Series((20.0, 20.3)), "TRL 1.16")
    text = pages.front([result(quiet, loud), result(ONCE, name="scaling")], "there/")
    assert text.index("- [Title of one_task](there/one_task.md): 1 row, 1 left out") < text.index("[Title of scaling]")
    cells = "| ms | 10.1 [10.0–10.1] | 20.1 [20.0–20.3] TRL 1.16 | 2.00 × [2.00–2.01] | < 1% | Some CPU, 2 cores |"
    assert f"(there/one_task.md) {cells}" in text
    assert "prompts of 256 tokens](there/one_task.md) (53%)" in text
    assert "None of the rows of this table is published." in pages.front([result(ONCE)], "")
    assert "Nothing has been measured" in pages.front([], "")


def test_results_survive_their_file_and_keep_the_order(tmp_path: Path) -> None:
    stored = [result(STEADY, ONCE), result(ONCE, name="scaling")]
    for each in reversed(stored):
        results.save(each, tmp_path)
    assert results.load(tmp_path, ["missing", "one_task", "scaling"]) == stored
    lines = (tmp_path / "one_task.json").read_text(encoding="utf-8").splitlines()
    assert sum("More tasks gain more." in line for line in lines) == 1


@pytest.mark.torch
def test_a_stamp_has_date_commit_and_versions(tmp_path: Path) -> None:
    stamped = results.stamp(result(ONCE).section, QUIET, tmp_path)
    assert stamped.commit == "unknown", "not a repository"
    assert {"python", "torch", "marlaas"} <= stamped.versions.keys()


@pytest.mark.parametrize(
    ("noises", "looks", "noise", "waits"),
    [((0.1,), 12, 0.1, 0), ((0.5, 0.24, 0.2), 12, 0.2, 2), ((0.5,) * 4, 3, 0.5, 3)],
)
def test_a_busy_moment_is_waited_for(
    monkeypatch: pytest.MonkeyPatch, noises: tuple[float, ...], looks: int, noise: float, waits: int
) -> None:
    found: Iterator[float] = iter(noises)
    waited: list[float] = []
    monkeypatch.setattr(machine, "matrix_rate", lambda: (100.0, next(found)))
    monkeypatch.setattr(machine, "sleep", waited.append)
    assert machine.describe(quiet=0.2, looks=looks).noise == noise
    assert waited == [machine.BETWEEN] * waits


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


def points(path: ElementTree.Element) -> list[tuple[float, float]]:
    found = str(path.get("d")).strip("MZ").split("L")
    return [(float(x), float(y)) for x, y in (point.split() for point in found)]


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


def test_curves_lie_where_their_values_are() -> None:
    root = drawn(SCORES)
    alone, at_once = map(points, lines(root))
    assert [x for x, _ in alone] == [x for x, _ in at_once]
    assert alone[1][0] == pytest.approx((alone[0][0] + alone[2][0]) / 2, abs=0.1)
    (_, first), (_, middle), (_, last) = alone
    assert (first - middle) / (first - last) == pytest.approx(35 / 57.5, abs=0.01), "up is less, in pixels"
    assert at_once[2][1] < alone[2][1]
    (band,) = (path for path in root.iter(f"{SVG}path") if "band" in str(path.get("class")))
    upper, lower = points(band)[:3], points(band)[:2:-1]
    assert all(up[1] < at[1] < down[1] for up, at, down in zip(upper, alone, lower, strict=True))


def test_twice_as_much_is_one_stride() -> None:
    one, four, most = points(lines(drawn(SCALING))[0])
    assert (most[0] - one[0]) / (four[0] - one[0]) == pytest.approx(3.0, abs=0.01)
    assert {"1", "4", "64"} <= {str(text.text) for text in drawn(SCALING).iter(f"{SVG}text")}


def test_curves_differ_by_more_than_colour() -> None:
    many = Curves("m", "M", "Many.", "x", "y", tuple(Curve(str(n), (0, 1), (n, n)) for n in range(2 * COLOURS)))
    assert len({path.get("stroke-dasharray") for path in lines(drawn(many))[:COLOURS]}) == COLOURS


@pytest.mark.parametrize("values", [(3.0,), (0.0,), (-1.0, -1.0), (1e-9, 2e-9), (1e6, 3e6)])
def test_any_values_can_be_drawn(values: tuple[float, ...]) -> None:
    places = tuple(float(n) for n in range(len(values)))
    assert "nan" not in svg(Curves("a", "A", "A.", "x", "y", (Curve("a", places, values),)))


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [(0.0, 30.0, (0, 5, 10, 15, 20, 25, 30)), (-2.0, 2.0, (-2, -1, 0, 1, 2)), (0.13, 0.29, (0.15, 0.2, 0.25))],
)
def test_marks_are_round(low: float, high: float, marks: tuple[float, ...]) -> None:
    found = ticks(low, high)
    assert found == pytest.approx(marks)
    assert all(low <= mark <= high for mark in found) and all(one < two for one, two in pairwise(found))


def test_what_cannot_be_a_curve_is_refused() -> None:
    for x, middle, low in (((), (), ()), ((1.0,), (1.0, 2.0), ()), ((1.0,), (1.0,), (0.5,))):
        with pytest.raises(ValueError, match="curve"):
            Curve("a", x, middle, low)
