"""Tries: how long until the next one, and what is said of it."""

from __future__ import annotations

from marlaas.engine.scheduler.decision import PAUSES, in_words, pause_before


def test_pauses_grow_and_then_stay() -> None:
    assert [pause_before(attempt) for attempt in range(1, 8)] == [*PAUSES, PAUSES[-1], PAUSES[-1]]
    assert sorted(PAUSES) == list(PAUSES)


def test_tries_are_counted_as_people_do() -> None:
    assert in_words(1, 1, "it broke") == "1st of 1 try: it broke"
    shown = [in_words(attempt, 30, "x").split()[0] for attempt in (2, 3, 4, 11, 12, 13, 21)]
    assert shown == ["2nd", "3rd", "4th", "11th", "12th", "13th", "21st"]
