"""A report as Markdown: what was written in it shows as it is."""

from __future__ import annotations

import re

from hypothesis import given, strategies as st

from marlaas.app.report.writing import markdown
from tests.app.filling import HOSTILE

from .documents import document

BAD = "# no [link](http://example.org) ![x](y) <b>bold</b> | cell `code` ``` *a* _b_ &lt; ~~~"


def skeleton(text: str) -> list[str]:
    """What begins each line, outside of fences: headings, tables, pictures, fences."""
    kinds, fence = [], ""
    for row in text.split("\n"):
        if fence:
            if row == fence:
                fence = ""
                kinds.append("end")
        elif found := re.match(r"`{3,}", row):
            fence = found[0]
            kinds.append("fence")
        elif found := re.match(r"#+ |\| |!\[|[-+*] |\d+[.)] |=+$|-+$|>|<", row):
            kinds.append(found[0])
    assert not fence
    return kinds


def unescaped(text: str) -> str:
    """The text without escaped marks."""
    return re.sub(r"\\.", "", text)


def test_every_piece_is_there() -> None:
    text = markdown(document("some words"), "pictures")
    assert text.startswith("# some words\n") and "(pictures/one.svg)" in text and "```toml\nsome words\n```" in text
    assert "| some words | n |\n| --- | --: |\n| some words | 1 |" in text


@given(st.one_of(st.sampled_from((BAD, HOSTILE, "1. one", "- two", "===", "---")), st.text(max_size=60)))
def test_what_was_written_has_no_meaning(words: str) -> None:
    text = markdown(document(words), "pictures")
    assert skeleton(text) == skeleton(markdown(document("words"), "pictures"))


@given(st.text(alphabet="`~ab\n", max_size=40))
def test_a_fence_is_longer_than_what_is_in_it(words: str) -> None:
    text = markdown(document(words), "pictures")
    assert text.count("text\n" + words + "\n```") >= 1 or "\n" in words or not words.strip()
    skeleton(text)


def test_tables_keep_their_columns() -> None:
    rows = [row for row in markdown(document("a | b"), "p").split("\n") if row.startswith("|")]
    assert {unescaped(row).count("|") for row in rows} == {3}
