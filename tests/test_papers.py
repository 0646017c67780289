"""docs/papers.md: every figure stands where its link leads."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.runner import MODULES

ROOT = Path(__file__).resolve().parent.parent
RESULTS = ROOT / "benchmarks" / "results"
TEXT = (ROOT / "docs" / "papers.md").read_text(encoding="utf-8")
WORDS = " ".join(TEXT.split())
NUMBER = r"\d[\d,]*(?:\.\d+)?"
FIGURES = sorted(set(re.findall(r"\[([^][]+)\]\(\.\./benchmarks/results/(\w+)\.md\)", WORDS)))
"""What is said, and the section on whose page it stands."""


def page(section: str) -> list[str]:
    """The lines of a section's page; none where nothing was measured."""
    path = RESULTS / f"{section}.md"
    return path.read_text(encoding="utf-8").splitlines() if path.exists() else []


def stands(said: str, lines: list[str]) -> bool:
    """Whether all numbers of a figure stand on one line, outside of the brackets of its spread."""
    wanted = set(re.findall(NUMBER, said))
    return bool(wanted) and any(wanted <= set(re.findall(NUMBER, re.sub(r"\[.*?\]", "", line))) for line in lines)


@pytest.mark.parametrize(("said", "section"), FIGURES)
def test_figures_stand_on_their_pages(said: str, section: str) -> None:
    assert stands(said, page(section)), f"benchmarks/results/{section}.md has no line with all numbers of {said!r}"


def test_every_figure_is_in_one_form() -> None:
    links = re.findall(r"\]\(\.\./benchmarks/results/\w+\.md\)", TEXT)
    assert FIGURES and TEXT.count("benchmarks/results/") == len(links)


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


def test_the_checks_find_what_is_wrong() -> None:
    lines = ["| a step | s | 31.7 [31.6–31.7] | 697 one after another | 22.0 × |", "Tools take 0.5 s."]
    assert stands("31.7 s, not 697 s: 22.0 ×", lines) and stands("−0.5", lines)
    for wrong in ("2.0 ×", "31.6", "31.7 s, 0.5", "faster"):
        assert not stands(wrong, lines)
