"""Which files of tests are run, and who takes which: what waits comes from the front, what computes from the back.

Tests that start processes wait for a good part of their time. So every other worker begins with these, the longest
first, and the rest with all others: while the ones wait, the others have the cores. Where one kind is through, its
workers help with the other.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection
from pathlib import Path
from threading import Lock

SELDOM = ("slow", "libraries")
"""Folders whose tests all have a make target of their own."""
LONG = "end_to_end"
"""The folder whose tests take the longest."""
WAITS = "mark.processes"


class Queue:
    """Files of tests, each taken once."""

    def __init__(self, files: list[str]) -> None:
        self._left, self._lock = deque(files), Lock()

    def take(self, from_front: bool) -> str | None:
        """The next one; None for none."""
        with self._lock:
            if not self._left:
                return None
            return self._left.popleft() if from_front else self._left.pop()

    def clear(self) -> None:
        """Nobody takes any more."""
        with self._lock:
            self._left.clear()

    def __len__(self) -> int:
        return len(self._left)


def in_order(root: Path, under: Collection[str] = ()) -> list[str]:
    """Test files of every day below ``root``, relative to it; with ``under``, those that it names or that lie there."""
    tests, wanted = root / "tests", {root / path for path in under}
    files = [
        path
        for path in tests.rglob("test_*.py")
        if path.relative_to(tests).parts[0] not in SELDOM and (not wanted or wanted & {path, *path.parents})
    ]
    waiting = [path for path in files if WAITS in path.read_text("utf-8")]
    waiting.sort(key=lambda path: (tests / LONG not in path.parents, path))
    computing = sorted(set(files) - set(waiting), reverse=True)
    return [str(path.relative_to(root)) for path in (*waiting, *computing)]
