"""Pictures of sections: what is kept of them, and what the SVG files hold."""

from __future__ import annotations

import json
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks.report import pages, results
from benchmarks.report.drawing import COLOURS, described, svg, ticks
from benchmarks.report.figures import Row, Section, Series
from benchmarks.report.machine import Machine
from benchmarks.report.pictures import Bar, Curve, Curves, Gantt, Panel, Picture, dump, parse, sampled
from benchmarks.report.results import Result

SVG = "{http://www.w3.org/2000/svg}"
QUIET = Machine("Some CPU", 2, 24.2, 106.4, 0.03, 0.25)
SCORES = Curves(
    "scores", "Score <by step>", "Both arms end alike.", "step", "score, %",
    (Curve("alone", (0.0, 10.0, 20.0), (5.0, 40.0, 62.5), (4.0, 35.0, 60.0), (6.0, 45.0, 65.0)),
     Curve("at once", (0.0, 10.0, 20.0), (5.0, 39.0, 63.0))),
    rows=("a step",),
)  # fmt: skip
SCALING = Curves(
    "scaling", "Ratio", "More tasks gain more.", "tasks", "×", (Curve("ratio", (1, 4, 64), (1, 3, 22)),), True
)
STAGES = Gantt(
    "stages", "Stages", "At once, no stage waits.",
    (Panel("at once", (Bar("rollout", 0.0, 4.0, "sampling"), Bar("training", 1.0, 5.0, "training", 0.5))),
     Panel("one by one", (Bar("rollout", 0.0, 1.0, "sampling"), Bar("rollout", 9.0, 10.0, "sampling")))),
)  # fmt: skip
ALL: tuple[Picture, ...] = (SCORES, SCALING, STAGES)


def drawn(picture: Picture) -> ElementTree.Element:
    return ElementTree.fromstring(svg(picture))


def result(*rows: Row, machine: Machine = QUIET) -> Result:
    return Result(Section("one_task", "One", "Once.", rows, pictures=ALL), machine, "2026-11-20 17:00", "abc", {})


@pytest.mark.parametrize("picture", ALL, ids=lambda picture: picture.name)
def test_a_picture_survives_its_line_of_json(picture: Picture) -> None:
    line = dump(picture)
    assert "\n" not in line
    assert parse(json.loads(line)) == picture


def test_a_result_keeps_its_pictures(tmp_path: Path) -> None:
    kept = result(Row("a step", "ms", Series((1.0,))))
    path = results.save(kept, tmp_path)
    assert results.load(tmp_path, ["one_task"]) == [kept]
    assert sum("shape" in line for line in path.read_text(encoding="utf-8").splitlines()) == len(ALL)


@pytest.mark.parametrize("picture", ALL, ids=lambda picture: picture.name)
def test_a_screen_reader_finds_title_and_words(picture: Picture) -> None:
    root = drawn(picture)
    title, words = root.findall(f"{SVG}title")[0], root.findall(f"{SVG}desc")[0]
    assert root.get("role") == "img" and root.get("aria-labelledby") == f"{title.get('id')} {words.get('id')}"
    assert title.text == picture.title
    assert words.text == described(picture) and picture.text in described(picture)


def test_the_words_hold_the_figures() -> None:
    assert "alone: 5.00 at 0, 62.5 at 20." in described(SCORES)
    assert "at once: within 5.00 s busy for rollout 4.00 s, training 2.00 s." in described(STAGES)


@pytest.mark.parametrize("picture", ALL, ids=lambda picture: picture.name)
def test_a_picture_fetches_nothing_and_fits_both_modes(picture: Picture) -> None:
    text = svg(picture)
    assert "prefers-color-scheme:dark" in text
    assert "<script" not in text and "href" not in text and "url(" not in text
    assert text.count("http") == 1, "the name of the format"


def numbers(path: ElementTree.Element) -> list[tuple[float, float]]:
    points = str(path.get("d")).strip("MZ").split("L")
    return [(float(x), float(y)) for x, y in (point.split() for point in points)]


def lines(root: ElementTree.Element) -> list[ElementTree.Element]:
    """Curves, without what the legend draws."""
    return [path for path in root.iter(f"{SVG}path") if "line" in str(path.get("class")) and "L" in str(path.get("d"))]


def test_curves_lie_where_their_values_are() -> None:
    alone, at_once = (numbers(path) for path in lines(drawn(SCORES)))
    assert [x for x, _ in alone] == [x for x, _ in at_once]
    assert alone[1][0] == pytest.approx((alone[0][0] + alone[2][0]) / 2, abs=0.1)
    (_, first), (_, middle), (_, last) = alone
    assert (first - middle) / (first - last) == pytest.approx(35 / 57.5, abs=0.01), "up is less, in pixels"
    assert at_once[2][1] < alone[2][1]


def test_a_band_surrounds_its_line() -> None:
    root = drawn(SCORES)
    (band,) = (path for path in root.iter(f"{SVG}path") if "band" in str(path.get("class")))
    around, line = numbers(band), numbers(lines(root)[0])
    upper, lower = around[:3], around[:2:-1]
    assert all(up[1] < at[1] < down[1] for up, at, down in zip(upper, line, lower, strict=True))


def test_twice_as_much_is_one_stride() -> None:
    one, four, most = numbers(lines(drawn(SCALING))[0])
    assert (most[0] - one[0]) / (four[0] - one[0]) == pytest.approx(3.0, abs=0.01)
    assert {"1", "4", "64"} <= {str(text.text) for text in drawn(SCALING).iter(f"{SVG}text")}


def test_panels_share_one_scale_of_seconds() -> None:
    bars = [str(path.get("d")) for path in drawn(STAGES).iter(f"{SVG}path") if "bar" in str(path.get("class"))]
    width = [float(bar.split("h")[1].split("v")[0]) for bar in bars]
    assert len(bars) == 3, "one path for a lane's bars of one kind"
    assert width[0] == pytest.approx(4 * width[2], abs=0.3), "4 s above, 1 s below"
    height = [float(bar.split("v-")[1].split("h")[0]) for bar in bars]
    assert height[1] == pytest.approx(height[0] / 2, abs=0.1), "half as busy"


def test_curves_differ_by_more_than_colour() -> None:
    many = Curves("m", "M", "Many.", "x", "y", tuple(Curve(str(n), (0, 1), (n, n)) for n in range(2 * COLOURS)))
    looks = [(path.get("class"), path.get("stroke-dasharray")) for path in lines(drawn(many))]
    assert len({dash for _, dash in looks[:COLOURS]}) == COLOURS


@pytest.mark.parametrize("values", [(3.0,), (0.0,), (-1.0, -1.0), (1e-9, 2e-9), (1e6, 3e6)])
def test_any_values_can_be_drawn(values: tuple[float, ...]) -> None:
    places = tuple(float(n) for n in range(len(values)))
    assert "nan" not in svg(Curves("a", "A", "A.", "x", "y", (Curve("a", places, values),)))


def test_a_gantt_without_bars_can_be_drawn() -> None:
    assert "busy for nothing" in svg(Gantt("a", "A", "A.", (Panel("empty", ()),)))


@pytest.mark.parametrize(
    ("low", "high", "marks"),
    [(0.0, 30.0, (0, 5, 10, 15, 20, 25, 30)), (-2.0, 2.0, (-2, -1, 0, 1, 2)), (0.13, 0.29, (0.15, 0.2, 0.25))],
)
def test_marks_are_round(low: float, high: float, marks: tuple[float, ...]) -> None:
    found = ticks(low, high)
    assert found == pytest.approx(marks)
    assert all(low <= mark <= high for mark in found)
    assert all(one < two for one, two in pairwise(found))


def test_what_cannot_be_a_curve_is_refused() -> None:
    for x, middle, low in (((), (), ()), ((1.0,), (1.0, 2.0), ()), ((1.0,), (1.0,), (0.5,))):
        with pytest.raises(ValueError, match="curve"):
            Curve("a", x, middle, low)


def test_samples_become_bars_as_busy_as_they_were() -> None:
    second = [(0.0, 1.0, 1.0), (1.0, 1.0, 1.0), (2.0, 1.0, 0.0), (3.0, 1.0, 0.5)]
    assert sampled("rollout", second) == (Bar("rollout", 0.0, 2.0), Bar("rollout", 3.0, 4.0, "", 0.5))
    merged = sampled("rollout", [(float(n), 1.0, n % 2) for n in range(1000)], columns=100)
    assert len(merged) == 1 and merged[0].end == 1000.0 and merged[0].share == 0.5
    assert sampled("rollout", ()) == ()


def test_pages_show_what_is_quiet() -> None:
    quiet, loud = Row("a step", "ms", Series((1.0, 1.0))), Row("a step", "ms", Series((1.0, 2.0)))
    page = pages.sections([result(quiet)], "BENCHMARKS.md", "../there")["one_task"]
    assert "![Stages](../there/stages.svg)\n\nAt once, no stage waits." in page
    assert set(pages.pictures([result(quiet)])) == {"scores", "scaling", "stages"}
    assert set(pages.pictures([result(loud)])) == {"scaling", "stages"}, "the row that the curves show is noisy"
    assert pages.pictures([result(quiet, machine=Machine("Some CPU", 2, 24.2, 106.4, 0.5, 0.25))]) == {}
