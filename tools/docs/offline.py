"""Whether built pages fetch something from elsewhere: HTML flows in, the addresses flow out.

Links that a reader follows are no matter here. Marks at which the theme's own script loads a library are.
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
        """Look at one element."""
        given = dict(attrs)
        address = given.get(_LOADS.get(tag, "")) or ""
        if "//" in address and not address.startswith("data:") and given.get("rel") != "canonical":
            self.found.append(address)
        self.found += sorted(_MARKS & set((given.get("class") or "").split()))


def fetched(html: str) -> list[str]:
    """What a page would fetch, in its order; empty where it is whole by itself."""
    page = _Fetched()
    page.feed(html)
    return page.found


def fetched_by(site: Path) -> list[str]:
    """The same of all pages of a folder, each as ``page: address``."""
    pages = sorted(site.rglob("*.html"))
    return [f"{path.relative_to(site)}: {one}" for path in pages for one in fetched(path.read_text("utf-8"))]
