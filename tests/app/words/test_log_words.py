"""What is said of a log: which one, whether it follows, why it is empty."""

from __future__ import annotations

import pytest

from marlaas.app.words.log_words import EVENTS, headline, nothing


def test_headlines() -> None:
    assert headline(EVENTS, None, 1, None, ()) == "events of all tasks · 1 line · follows"
    assert headline(EVENTS, 17, 2000, 5, ["engine.log"]) == (
        "events of task 17 · 2,000 lines · line 6; G goes on following   ] engine.log"
    )
    assert headline("env \x1b[31m.log", None, 0, None, ()).startswith("env .log · 0 lines")


@pytest.mark.parametrize(
    ("source", "task", "filtered", "words"),
    [
        (EVENTS, None, False, "Nothing has happened yet."),
        (EVENTS, 3, False, "about task 3 yet. o shows"),
        (EVENTS, 3, True, "passes the filter"),
        ("engine.log", None, False, "Nothing is written here"),
    ],
)
def test_why_there_is_nothing(source: str, task: int | None, filtered: bool, words: str) -> None:
    assert words in nothing(source, task, filtered)
