"""What is counted while a block runs."""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from pathlib import Path

import torch

from benchmarks.guard import storing
from benchmarks.guard.__main__ import COUNTS
from benchmarks.guard.comparison import changes, read
from benchmarks.guard.watching import Seen, frames, operations, python_calls
from marlaas.engine.machine.workers import wire
from marlaas.engine.samplers.seeds import noise_seed


@dataclass(frozen=True)
class Pair:
    left: int
    right: int


def test_calls_of_our_packages_count_alone() -> None:
    seen = Seen()
    with python_calls(seen):
        for member in range(3):
            noise_seed(1, "train", member)
            Pair(member, member)
            sorted([3, 1, 2], key=lambda value: -value)
    noise_seed(2)
    counts = seen.counts()
    assert counts["Python calls, dataclasses"] == 3
    assert counts["Python calls, engine/samplers"] >= 3
    assert set(counts) == {"Python calls, dataclasses", "Python calls, engine/samplers"}


async def test_frames_and_messages_count_without_paths(tmp_path: Path) -> None:
    written: list[bytes] = []
    sizes = []
    for folder in (tmp_path, tmp_path / "much" / "further" / "below"):
        seen = Seen()
        outbox = wire.Outbox(written.append, lambda message, error: None)
        with frames(seen, folder):
            for number in range(3):
                outbox.send(wire.Call(number, "load", (str(folder / "state"),)))
            await asyncio.sleep(0)
        assert seen.wire["frames to workers"] == 1 and seen.wire["messages to workers"] == 3
        sizes.append(seen.wire["bytes to workers"])
    assert len(written[0]) < len(written[1])
    assert sizes[0] == sizes[1]


def test_views_are_told_from_operations() -> None:
    rows = torch.ones(4, 4)
    assert dict(operations(lambda: (rows.T @ rows).view(16).sum())) == {"operations": 2, "views": 2}


def test_statements_are_those_in_the_file() -> None:
    """What the store does for a group and for a step is quick to count, so the suite says when the file is old."""
    found = storing.measure()
    kept = {name: count for name, count in read(COUNTS.read_text("utf-8")).items() if name.endswith(tuple(found))}
    assert found["a group of 8 members stored: SQL, INSERT"] >= storing.MEMBERS
    assert not changes(kept, found)
