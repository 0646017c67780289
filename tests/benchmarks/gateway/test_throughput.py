"""The client and the bare sampler answer the same prompts, on a small base."""

from pathlib import Path

import pytest

from benchmarks.gateway.throughput import compared
from tools.random_base.make import make_base

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


def test_both_sides_are_measured(tmp_path: Path) -> None:
    throughput, first = compared(make_base(tmp_path / "base", rows=1500), "f32", 4, 1)
    for row in (throughput, first):
        assert row.theirs is not None and len(row.ours.values) == len(row.theirs.values) == 1
        assert row.ours.middle > 0 and row.theirs.middle > 0
    assert throughput.higher_is_better and throughput.unit == "tokens/s"
