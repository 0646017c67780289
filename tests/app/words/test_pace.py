"""How long a task still takes."""

from __future__ import annotations

from dataclasses import replace

from marlaas.app.words.format import short_duration
from marlaas.app.words.pace import is_rough, left_text, seconds_left, tokens_per_second
from marlaas.engine.store.rows import PaceRow

from ..rows import task


def test_a_running_task_takes_its_pace() -> None:
    row = replace(task(20), steps=60)
    assert seconds_left(row, PaceRow(2.0, 500.0)) == 80.0
    assert tokens_per_second(row, PaceRow(2.0, 500.0)) == 250.0


def test_what_does_not_run_has_no_end_in_sight() -> None:
    assert seconds_left(task(1, state="paused"), PaceRow(2.0, 1.0)) is None
    assert seconds_left(task(1), None) is None and seconds_left(task(1), PaceRow(0.0, 1.0)) is None


def test_spans_of_time_in_few_cells() -> None:
    spans = [short_duration(seconds) for seconds in (0, 41, 200, 7500, 277_000)]
    assert spans == ["0s", "41s", "3m20", "2h05", "3d04"]


def test_a_time_from_few_steps_says_so() -> None:
    assert is_rough(PaceRow(2.0, 1.0, 3)) and not is_rough(PaceRow(2.0, 1.0, 4)) and not is_rough(None)
    assert left_text(200, True) == "~3m20" and left_text(200, False) == "3m20"
