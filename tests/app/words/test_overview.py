"""The first line's numbers, and what of them fits."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest

from marlaas.app.widgets.top_bar import fitting
from marlaas.app.words.overview import Overview, Part, overview, parameter_count, parts
from marlaas.engine.store.rows import PaceRow, TaskRow

ROW = TaskRow(
    1, "lab", "sums", "arithmetic", "running", "", 0, 10, 60, 0.5, None, None, None, "", None, 0, 1.0, 0.0, None, None
)


def test_it_counts_who_runs_and_who_is_done_first() -> None:
    blocked = replace(ROW, id=3, state="blocked", reason_code="blocked")
    tasks = [ROW, replace(ROW, id=2, step=50), blocked, replace(blocked, id=4, state="cancelled")]
    found = overview(tasks, {1: PaceRow(1.0, 100), 2: PaceRow(2.0, 100)}, "tiny", 1_250_000, 42.4, alive=True)
    assert found == Overview("tiny", 1_250_000, 42.4, running=2, blocked=1, next_task=2, next_seconds=20.0)
    assert [part.text for part in parts(found)] == [
        "tiny 1.2M",
        "42 turns/s",
        "● 2 running",
        "■ 1 blocked",
        "task 2 done in 20s",
    ]


def test_without_an_engine_nothing_runs() -> None:
    found = overview([ROW], {1: PaceRow(1.0, 100)}, "tiny", None, 42.0, alive=False)
    assert (found.running, found.turns, found.next_task) == (0, None, None)
    assert [part.text for part in parts(found)] == ["tiny"]


def test_a_base_is_named_by_its_last_part() -> None:
    named = [parts(Overview(name))[0].text for name in ("/models/Qwen2-0.5B", "org/model@main", "[/b]\x1b[31m")]
    assert named == ["Qwen2-0.5B", "model@main", "b]"]


@pytest.mark.parametrize(
    ("value", "text"),
    [(None, ""), (640, "640"), (42_300_000, "42M"), (1_540_000_000, "1.5B"), (70_600_000_000, "71B"), (9_000, "9.0k")],
)
def test_sizes_are_named_as_people_do(value: int | None, text: str) -> None:
    assert parameter_count(value) == text


def test_what_matters_least_goes_first() -> None:
    found = [Part("base", 4), Part("turns", 5), Part("running", 1), Part("blocked", 0), Part("next", 2)]
    shown = [[part.text for part in fitting(found, room, 1)] for room in range(40)]
    assert shown[0] == [] and shown[8] == ["blocked"] and shown[16] == ["running", "blocked"]
    assert shown[-1] == [part.text for part in found]
    for fewer, more in pairwise(shown):
        assert set(fewer) <= set(more), "with more room nothing goes away"
