"""docs/papers.md: every figure stands where its link leads, and none that is published is missing."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.many_tasks.arrival import Setting, reckon
from benchmarks.runner import MODULES

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TEXT = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())
NUMBER = r"\d[\d,]*(?:\.\d+)?"
FIGURES = sorted(set(re.findall(r"\[([^][]+)\]\(\.\./benchmarks/results/(\w+)\.md\)", WORDS)))
"""What is said, and the section on whose page it stands."""
MISSING = sorted(set(re.findall(r"not published yet \((\w+): ([^)]+)\)", WORDS)))
"""The section that a figure waits for, and words of its row."""


def page(section: str) -> list[str]:
    """The lines of a section's page; none where nothing was measured."""
    path = RESULTS / f"{section}.md"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def stands(said: str, lines: list[str]) -> bool:
    """Whether all numbers of a figure stand on one line, outside of the brackets of its spread."""
    wanted = set(re.findall(NUMBER, said))
    return bool(wanted) and any(wanted <= set(re.findall(NUMBER, re.sub(r"\[.*?\]", "", line))) for line in lines)


def shown(row: str, lines: list[str]) -> bool:
    """Whether a table of the page has a row with these words."""
    return any(row in line for line in lines if line.startswith("|"))


def code(section: str) -> str:
    """The source of a section and of what lies beside it."""
    folder = ROOT / "benchmarks" / MODULES[section].split(".")[0]
    return "\n".join(path.read_text(encoding="utf-8") for path in sorted(folder.glob("*.py")))


@pytest.mark.parametrize(("said", "section"), FIGURES)
def test_figures_stand_on_their_pages(said: str, section: str) -> None:
    assert stands(said, page(section)), f"benchmarks/results/{section}.md has no line with all numbers of {said!r}"


@pytest.mark.parametrize(("section", "row"), MISSING)
def test_missing_figures_are_not_published(section: str, row: str) -> None:
    assert row in code(section), f"the section {section} will never have a row {row!r}"
    assert not shown(row, page(section)), f"{section} is published: write its figure into docs/papers.md"


def test_every_figure_and_every_gap_is_in_one_form() -> None:
    links = re.findall(r"\]\(\.\./benchmarks/results/\w+\.md\)", TEXT)
    assert FIGURES and TEXT.count("benchmarks/results/") == len(links)
    assert WORDS.count("not published yet") == len(re.findall(r"not published yet \(\w+: [^)]+\)", WORDS))


def test_each_claim_of_a_table_has_its_part() -> None:
    claims = re.findall(r"(?m)^\| \[([^][]+)\]\(#([\w-]+)\) \|", TEXT)
    assert [claim for claim, _ in claims] == re.findall(r"(?m)^### (.+)$", TEXT)
    for claim, anchor in claims:
        assert anchor == re.sub(r"[^\w -]", "", claim.lower()).replace(" ", "-")
        part = TEXT.partition(f"### {claim}\n")[2].partition("\n#")[0]
        assert all(f"- **{word}**" in part for word in ("Here", "Run", "Differs")), claim


def test_what_is_to_be_run_can_be() -> None:
    named = re.findall(r"make bench BENCH=(?:'([^']+)'|(\w+))", TEXT)
    assert named and {name for several, one in named for name in (several or one).split()} <= set(MODULES)


def test_published_pictures_are_shown() -> None:
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs").rglob("*.md"))
    for picture in (ROOT / "docs" / "measured").glob("*.svg"):
        assert f"measured/{picture.name})" in pages, f"no page of docs shows {picture.name}"


def test_the_order_of_arrival_is_reckoned_as_said() -> None:
    """A fifth, because seeds differ; five points for a share; tests/benchmarks/many_tasks has more of it."""
    plain = Setting(0.0, groups=8, compute=0.2)
    constant = reckon(plain, 100).step

    def said(row: str) -> list[float]:
        (cells,) = re.findall(rf"(?m)^ *\| {re.escape(row)} \|(.*)\|$", TEXT)
        return [float(number) for number in re.findall(NUMBER, cells)]

    rows = {
        "order of numbers": plain,
        "order of arrival": replace(plain, order="arrival"),
        "order of numbers, `redundant = 2`": replace(plain, redundant=2),
    }
    for row, setting in rows.items():
        for sigma, figure in zip((1.0, 1.5, 2.0), said(row), strict=True):
            found = reckon(replace(setting, sigma=sigma), 150)
            assert found.step / constant == pytest.approx(figure, rel=0.2), (row, sigma)
            if setting.order == "arrival":
                assert 100 * found.given_up == pytest.approx(said("groups given up")[round(2 * sigma) - 2], abs=5)


def test_the_checks_find_what_is_wrong() -> None:
    lines = ["| a step | s | 31.7 [31.6–31.7] | 697 one after another | 22.0 × |", "Tools take 0.5 s."]
    assert stands("31.7 s, not 697 s: 22.0 ×", lines) and stands("−0.5", lines)
    for wrong in ("2.0 ×", "31.6", "31.7 s, 0.5", "faster"):
        assert not stands(wrong, lines)
    assert shown("a step", lines) and not shown("Tools take", lines)
