"""Cards in the view of the engine, whatever their names and holders say."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from marlaas.app.widgets.engine_panes import Line, cards, processes
from marlaas.app.widgets.status_line import worker_texts
from marlaas.engine.devices.machine import Holder
from marlaas.engine.store.queries.machine import DeviceRow
from marlaas.engine.store.rows import WorkerRow

GB = 1_000_000_000
OURS = DeviceRow("GPU-0", "gpu 0", "An H100", 80 * GB, 50 * GB, 0.37, "", (Holder(5, "me", 30 * GB, ours=True),), 1.0)
WHY = "gpu 1 is left alone: account anna holds 12.3 GB of it."
ANNAS = DeviceRow("GPU-1", "gpu 1", "An H100", 80 * GB, 67 * GB, None, WHY, (Holder(6, "anna", 12 * GB),), 1.0)


def texts(lines: Sequence[Line]) -> list[str]:
    return ["".join(text for text, _ in line) for line in lines]


def test_a_line_a_card_and_one_for_what_is_left_alone() -> None:
    assert cards([], "me", 80) == []
    headers, ours, annas, why = texts(cards([OURS, ANNAS], "me", 80))
    assert headers.split() == ["card", "name", "free", "busy", "held", "by"]
    assert "50.0 GB of 80.0 GB   37 %  this engine 30.0 GB" in ours
    assert "anna 12.0 GB" in annas and why == f"  {WHY}"


def test_nothing_is_obeyed() -> None:
    bad = "\x1b[2J\n[red]"
    row = DeviceRow("GPU-0", bad, bad, 1, 1, 0.5, bad, (Holder(6, bad, 12),), 1.0)
    for text in texts(cards([row], "me", 60)):
        assert "\x1b" not in text and "\n" not in text


def test_memory_of_cards_stands_beside_that_of_the_machine() -> None:
    workers = [
        WorkerRow("rollout", 5, "running", GB, 0.5, 1.0, 1.0),
        WorkerRow("engine", 4, "running", GB, 0.1, 1.0, 1.0),
    ]
    headers, engine, rollout = texts(processes(workers, {}, None, 2, 9.0, 100, {5: 30 * GB, 6: GB}))
    assert "memory  of cards" in headers and "1.0 GB   30.0 GB   50 %" in rollout and "30.0" not in engine
    assert "of cards" not in texts(processes(workers, {}, None, 2, 9.0, 100))[0]


@pytest.mark.parametrize("held", [None, {4: GB}])
def test_a_worker_without_a_process_shows_its_state(held: dict[int, int] | None) -> None:
    again = WorkerRow("rollout", None, "starting", 0, 0.0, 0.0, 1.0)
    line = texts(processes([again], {}, None, 2, 9.0, 100, held))[1]
    assert line.split() == ["rollout", "starting"]
    assert worker_texts([again]) == ["rollout starting"]
