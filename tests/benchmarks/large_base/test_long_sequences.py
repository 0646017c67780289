"""Each length is measured in a process of its own, in tiles and, where that fits, with every score held."""

from pathlib import Path

import pytest

from benchmarks.large_base import long_sequences
from benchmarks.large_base.long_pass import Stage
from tools.random_base.make import make_base


@pytest.mark.parametrize("stage", ["training", "sampling"])
def test_seconds_and_memory_of_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: Stage) -> None:
    base = make_base(tmp_path, rows=1500)
    both = long_sequences.rows_of(base.path, stage, "f32", 600, 1)
    assert [row.unit for row in both] == ["s", "MB"]
    assert all(row.ours.middle > 0 and row.theirs is not None and row.theirs.middle > 0 for row in both)
    monkeypatch.setitem(long_sequences.SQUARE, (stage, "f32"), 1e18)
    assert all(row.theirs is None for row in long_sequences.rows_of(base.path, stage, "f32", 600, 1))
