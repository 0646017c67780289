"""The pages of the site: all that links lead to is there, and no page fetches anything."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tools.docs import LINK, fetched, places, relinked, write_pages
from tools.reference import ROOT, pages, write_reference

FOUND = {
    "BENCHMARKS.md": "benchmarks.md",
    "benchmarks/results/engine.md": "results/engine.md",
    "docs/index.md": "index.md",
    "docs/measured/engine.svg": "measured/engine.svg",
    "docs/operations/speed.md": "operations/speed.md",
}


def test_links_follow_their_files() -> None:
    text = "[1.66 ms](../../benchmarks/results/engine.md#method), [all](../../BENCHMARKS.md) and [start](../index.md)"
    shown = "[1.66 ms](../results/engine.md#method), [all](../benchmarks.md) and [start](../index.md)"
    assert relinked(text, "docs/operations/speed.md", FOUND) == shown
    page = "How to read it: [Benchmarks](../../BENCHMARKS.md).\n\n![A picture](../../docs/measured/engine.svg)"
    shown = "How to read it: [Benchmarks](../benchmarks.md).\n\n![A picture](../measured/engine.svg)"
    assert relinked(page, "benchmarks/results/engine.md", FOUND) == shown
    assert relinked("[engine](benchmarks/results/engine.md)", "BENCHMARKS.md", FOUND) == "[engine](results/engine.md)"


def test_no_link_of_the_site_leads_out_of_it(tmp_path: Path) -> None:
    """Zensical, which checks this too, is not there when tests run."""
    write_pages(tmp_path)
    write_reference(tmp_path / "reference")
    known = {path.resolve() for path in tmp_path.rglob("*.*")}
    assert {(tmp_path / place).resolve() for place in places().values()} <= known
    for page in (path for path in tmp_path.rglob("*.md") if path.name not in pages()):
        text = re.sub(r"(?ms)^```.*?^```|`[^`\n]*`", "", page.read_text(encoding="utf-8"))
        for target in LINK.findall(text):
            assert (page.parent / target).resolve() in known, f"{page.relative_to(tmp_path)}: {target}"


def test_the_site_is_built_from_these_pages() -> None:
    assert re.search(r"(?m)^docs_dir: build/pages\b", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("html", "found"),
    [
        ('<a href="https://example.org">read</a>', []),
        ('<script src="assets/a.js"></script><img src="data:image/svg+xml;//">', []),
        ('<link rel="canonical" href="https://example.org/page">', []),
        ('<link rel="stylesheet" href="https://fonts.example.org/a.css">', ["https://fonts.example.org/a.css"]),
        ('<script src="//cdn.example.org/a.js"></script>', ["//cdn.example.org/a.js"]),
        ('<pre class="mermaid">graph</pre>', ["mermaid"]),
    ],
)
def test_what_a_page_fetches(html: str, found: list[str]) -> None:
    assert fetched(html) == found
