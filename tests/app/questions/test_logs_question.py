"""The logs view's question: events and files are read on from where they stood, and what is gone goes."""

from __future__ import annotations

import pytest

from marlaas.app.questions import LogsQuestion
from marlaas.app.reading import opened
from marlaas.app.text.format import EVENTS
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.machine import EventFilter

from ..filling import Filling


def test_events_are_listed_on(home: Home, filling: Filling) -> None:
    question = LogsQuestion(home, EVENTS, EventFilter(("odd",)))
    with opened(home) as reader:
        filling.event("even 0")
        answer = question.read(reader, None)
        for number in range(1, 6):
            filling.event(f"{'odd' if number % 2 else 'even'} {number}")
            before, answer = answer, question.read(reader, answer)
            assert (answer.listing is before.listing) == (number % 2 == 0)
        assert list(answer.listing.ids) == [2, 4, 6] and answer.last == 6
        filling.execute("DELETE FROM events WHERE id < 3")
        answer = question.read(reader, answer)
        assert list(answer.listing.ids) == [4, 6]
        assert [line.text for line in answer.listing.read(reader, [4, 2]).values()] == ["odd 3"]


def test_files_are_read_on_and_no_other_file_is(home: Home, filling: Filling) -> None:
    home.logs.mkdir(parents=True)
    log = home.logs / "engine.log"
    log.write_text("info: one\nerror: two\n")
    question = LogsQuestion(home, "engine.log", EventFilter(level="error"))
    with opened(home) as reader:
        first = question.read(reader, None)
        assert first.files == ("engine.log",) and list(first.listing.ids) == [10]
        assert question.read(reader, first).listing is first.listing
        with log.open("a") as more:
            more.write("error: three\n")
        second = question.read(reader, first)
        assert second.listing.at_hand is not None
        assert [line.text for line in second.listing.at_hand.values()] == ["two", "three"]
        outside = LogsQuestion(home, "../marlaas.toml", EventFilter()).read(reader, None)
        assert len(outside.listing.ids) == 0


@pytest.mark.parametrize("wanted", [EventFilter(), EventFilter(task=1), EventFilter(tenant="x")])
def test_an_empty_log(home: Home, filling: Filling, wanted: EventFilter) -> None:
    with opened(home) as reader:
        assert len(LogsQuestion(home, EVENTS, wanted).read(reader, None).listing.ids) == 0
