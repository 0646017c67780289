"""Built pages that fetch something are found; links for readers are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs.offline import fetched, fetched_by


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


def test_pages_of_a_folder_are_named(tmp_path: Path) -> None:
    (tmp_path / "guides").mkdir()
    (tmp_path / "guides" / "a.html").write_text('<img src="http://x/y.png">')
    assert fetched_by(tmp_path) == ["guides/a.html: http://x/y.png"]
