"""Reports: which rollouts they show, as Markdown, as pictures, as one HTML file."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

from hypothesis import given, strategies as st

from marlaas.app.chart.draw import Curve, Point
from marlaas.app.report.telling import (
    Chart,
    Code,
    Document,
    Piece,
    Section,
    Table,
    chosen,
)
from marlaas.app.report.writing import NARROW, WIDE, described, html, markdown, svg
from marlaas.engine.store.queries.episodes import GroupSummary, MemberSummary
from tests.app.filling import HOSTILE

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


VALUES = st.floats(allow_nan=True, allow_infinity=True)


def chart(values: list[float], large: bool = False, words: str = "what it is") -> Chart:
    curve = Curve(list(range(1, len(values) + 1)), values)
    return Chart("one", words, words, [(words, curve)] if values else [], large=large)


def test_words_for_who_cannot_see() -> None:
    one = Chart("a", "A", "What.", [("reward", Curve([1, 9], [0.25, 0.5]))], [Point(0, 0.1), Point(9, 0.9)])
    assert described(one) == ("What. reward: 0.25 at step 1, 0.5 at step 9. Held-out: 0.10 at step 0, 0.90 at step 9.")
    root = ElementTree.fromstring(svg(one, alone=True))
    assert [child.text for child in root if child.tag.endswith("desc")] == [described(one)]


@given(st.lists(VALUES, max_size=30), st.booleans())
def test_any_numbers_stay_in_the_frame(values: list[float], large: bool) -> None:
    text = svg(chart(values, large), alone=True)
    ElementTree.fromstring(text)
    width, height = WIDE if large else NARROW
    for path in re.findall(r' d="M([^"]*?)Z?"', text):
        for x, y in re.findall(r"(-?[\d.]+) (-?[\d.]+)", path):
            assert 0 <= float(x) <= width and 0 <= float(y) <= height


def test_a_long_run_makes_a_small_picture() -> None:
    assert len(svg(chart([0.5, 0.7] * 50_000), alone=True)) < 20_000


VOID = {"meta", "path", "circle", "rect"}

FETCHING = {"src", "href", "srcset", "action", "data", "poster"}

BAD_HTML = "<script>alert(1)</script><img src=http://example.org/x onerror=alert(1)>]]>--></pre></main>'\"&amp;"


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


def test_every_piece_is_on_the_web_page() -> None:
    tags = read(html(document("some words")))
    assert {"h1", "h2", "h3", "table", "svg", "details", "style"} <= tags.seen
    assert "".join(tags.text).count("some words") >= 12


@given(
    st.one_of(st.sampled_from((BAD_HTML, HOSTILE)), st.text(max_size=60), st.text(alphabet="<>/&'\"-!sp", max_size=40))
)
def test_what_was_written_is_text(words: str) -> None:
    tags = read(html(document(words)))
    plain = read(html(document("words")))
    assert tags.seen == plain.seen and tags.attributes == plain.attributes
    assert not tags.attributes & FETCHING and "script" not in tags.seen


REWARDS = st.lists(st.sampled_from((0.0, 0.25, 0.5, 1.0)), min_size=1, max_size=4).map(tuple)

MEASURED = st.dictionaries(st.integers(0, 9), REWARDS, max_size=10)


def group(number: int, instance: int, step: int, rewards: tuple[float, ...]) -> GroupSummary:
    members = tuple(MemberSummary(place, "agent", "ok", reward) for place, reward in enumerate(rewards))
    return GroupSummary(number, "eval", instance, instance, 0, "", step, members)


def evaluated(rewards: dict[int, tuple[float, ...]], step: int) -> dict[int, GroupSummary]:
    return {instance: group(100 * step + instance, instance, step, paid) for instance, paid in rewards.items()}


def test_what_changed_most_comes_first() -> None:
    first = evaluated({0: (0.0,), 1: (1.0,), 2: (0.0,), 3: (1.0,)}, 0)
    best = evaluated({0: (1.0,), 1: (0.0,), 2: (0.0,), 3: (1.0,)}, 9)
    found = chosen([first, best], [])
    assert [(one.group, one.reward) for one in found] == [(0, 0), (900, 1), (1, 1), (901, 0), (2, 0), (902, 0)]
    assert found[0].why == "Most was gained on prompt 0: at step 0" and found[1].why.endswith("at step 9")
    assert found[2].why.startswith("Most was lost on prompt 1") and "Prompt 2 is not solved" in found[4].why


@given(MEASURED, MEASURED, st.lists(REWARDS, max_size=3))
def test_each_choice_can_be_found(
    first: dict[int, tuple[float, ...]], best: dict[int, tuple[float, ...]], trained: list[tuple[float, ...]]
) -> None:
    measured = [evaluated(first, 0), evaluated(best, 9)]
    groups = [group(5000 + place, place, 9, rewards) for place, rewards in enumerate(trained)]
    known = {one.id: one.rewards for one in (*measured[0].values(), *measured[1].values(), *groups)}
    found = chosen(measured, groups)
    assert all(one.reward in known[one.group] for one in found)
    assert len({(one.group, one.reward) for one in found}) == len(found)


def document(words: str) -> Document:
    """Every kind of piece, with the same words in each place."""
    curve = Curve([1, 2, 3], [0.1, 0.2, 0.4], [0.0, 0.1, 0.2], [0.2, 0.3, 0.9])
    pieces: list[Piece] = [
        words,
        Table((words, "n"), [(words, "1"), ("", words)], ("n",)),
        Chart("one", words, words, [(words, curve)], [Point(2, 0.5, 0.1)], 0.3, unit=True, large=True),
        Chart("two", words, words, [(words, curve), (words, Curve([1], [5.0], place=1))]),
        Code(words, words),
        Code(words, words, "toml"),
    ]
    return Document(words, words, [Section(words, pieces), Section(words, (), 3)])
