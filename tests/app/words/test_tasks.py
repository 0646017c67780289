"""How rows read."""

from __future__ import annotations

import pytest

from marlaas.app.reading.opening import opened
from marlaas.app.words.tasks import liveness, newest_series, queue_order
from marlaas.engine.home.paths import Home
from marlaas.engine.store.rows import EngineRow, EvalRow

from ..filling import Filling


@pytest.mark.parametrize(
    ("state", "age", "exists", "word", "text"),
    [
        ("running", 1.0, True, "alive", "alive 1 s ago"),
        ("starting", 1.0, True, "alive", "starting, alive 1 s ago"),
        ("running", 41.0, True, "silent", "silent 41 s"),
        ("running", 41.0, False, "down", "down, last heard 41 s ago"),
        ("running", 1.0, False, "down", "down, last heard 1 s ago"),
        ("stopped", 7260.0, True, "down", "down since 2 h 01 min ago"),
    ],
)
def test_liveness(state: str, age: float, exists: bool, word: str, text: str) -> None:
    engine = EngineRow(1, 123, state, 0.0, 10_000.0 - age, "tiny", "")
    found = liveness(engine, 10_000.0, lambda pid: exists)
    assert (found.word, found.text) == (word, text)


def test_no_engine_ever() -> None:
    assert liveness(None, 0.0).word == "never"


def test_only_the_newest_series_counts() -> None:
    rows = [
        EvalRow(step, 0.5, 0.0, 64, None, "e", series=key) for step, key in ((0, "a"), (10, "a"), (20, "b"), (0, "b"))
    ]
    assert [row.step for row in newest_series(rows)] == [0, 20]
    assert newest_series([]) == []


def test_what_moves_comes_first(filling: Filling, home: Home) -> None:
    for state in ("done", "submitted", "queued", "failed", "paused", "running"):
        filling.task(state=state)
    with opened(home) as reader:
        ordered = [task.state for task in sorted(reader.tasks(), key=queue_order)]
    assert ordered == ["running", "paused", "queued", "submitted", "failed", "done"]
