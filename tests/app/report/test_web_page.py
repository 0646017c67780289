"""A report as one HTML file: whole, and harmless whatever was written in it."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given, strategies as st

from marlaas.app.report.writing import html
from tests.app.filling import HOSTILE

from .documents import document

VOID = {"meta", "path", "circle", "rect"}
FETCHING = {"src", "href", "srcset", "action", "data", "poster"}
BAD = "<script>alert(1)</script><img src=http://example.org/x onerror=alert(1)>]]>--></pre></main>'\"&amp;"


class Tags(HTMLParser):
    """Checks that what is opened is closed, and collects what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.attributes: set[str] = set()
        self.text: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text.append(data)


def read(text: str) -> Tags:
    tags = Tags()
    tags.feed(text)
    tags.close()
    assert tags.open == []
    return tags


def test_every_piece_is_there() -> None:
    tags = read(html(document("some words")))
    assert {"h1", "h2", "h3", "table", "svg", "article", "details", "style"} <= tags.seen
    assert "".join(tags.text).count("some words") >= 12


@given(st.one_of(st.sampled_from((BAD, HOSTILE)), st.text(max_size=60), st.text(alphabet="<>/&'\"-!sp", max_size=40)))
def test_what_was_written_is_text(words: str) -> None:
    tags = read(html(document(words)))
    plain = read(html(document("words")))
    assert tags.seen == plain.seen and tags.attributes == plain.attributes
    assert not tags.attributes & FETCHING and "script" not in tags.seen
