"""Waiting for tasks of a real engine, which is another process."""

from __future__ import annotations

import time
from collections.abc import Sequence

from ..end_to_end.conftest import Lab


def finished(lab: Lab, tasks: Sequence[int]) -> None:
    """Wait until all of them are done; one that pauses or fails will never be."""
    assert not unfinished(lab, tasks, 1000)


def unfinished(lab: Lab, tasks: Sequence[int], seconds: float) -> list[str]:
    """Wait until none of them goes on by itself, at most so long; returns in words which are not done."""
    deadline = time.monotonic() + seconds
    while any(row.unfinished and row.state != "paused" for row in map(lab.row, tasks)) and time.monotonic() < deadline:
        time.sleep(0.2)  # there is nothing to await
    left = (row for row in map(lab.row, tasks) if row.state != "done")
    return [f"{row.name} is {row.state} after step {row.step}: {row.reason}" for row in left]
