"""The addresses elsewhere that built pages would fetch.

Links that a reader follows do not count. Marks at which the theme's own script loads a library do.
"""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path

_LOADS = {"script": "src", "img": "src", "iframe": "src", "link": "href", "source": "src", "object": "data"}
_MARKS = {"mermaid", "glightbox"}
"""Classes of what the theme's script draws with a library that it fetches."""


class _Fetched(HTMLParser):
    """Collects what one page would fetch."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note what one element would fetch."""
        given = dict(attrs)
        address = given.get(_LOADS.get(tag, "")) or ""
        if "//" in address and not address.startswith("data:") and given.get("rel") != "canonical":
            self.found.append(address)
        self.found += sorted(_MARKS & set((given.get("class") or "").split()))


def fetched(html: str) -> list[str]:
    """What a page would fetch, in the order of the page; empty where it needs nothing else."""
    page = _Fetched()
    page.feed(html)
    return page.found


def fetched_by(site: Path) -> list[str]:
    """What all pages of a folder would fetch, each as ``page: address``."""
    pages = sorted(site.rglob("*.html"))
    return [f"{path.relative_to(site)}: {one}" for path in pages for one in fetched(path.read_text("utf-8"))]
