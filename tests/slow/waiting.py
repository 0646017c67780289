"""Waiting for tasks of a real engine, which is another process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..end_to_end.conftest import Lab


def finished(lab: Lab, tasks: Sequence[int]) -> None:
    """Wait until all of them are done; a task that pauses or fails will not be, so it ends the wait."""
    while unfinished := [row for row in map(lab.row, tasks) if row.unfinished]:
        stuck = [row for row in unfinished if row.state == "paused"]
        assert not stuck, stuck
        time.sleep(0.2)  # there is nothing to await
    assert {lab.row(task).state for task in tasks} == {"done"}
