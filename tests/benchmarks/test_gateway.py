"""The client and the bare sampler answer the same prompts, on a small base."""

from __future__ import annotations

import multiprocessing
import os
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from benchmarks.gateway import Bare, compared
from tools.random_base.make import make_base

pytestmark = [pytest.mark.processes, pytest.mark.timeout(120)]


@pytest.mark.slow
def test_both_sides_are_measured(tmp_path: Path) -> None:
    """It starts two samplers of all cores and a gateway, and changes when the benchmark does."""
    throughput, spent, first = compared(make_base(tmp_path / "base", rows=1500), "f32", 4, 1)
    for row in (throughput, spent, first):
        assert row.theirs is not None and len(row.ours.values) == len(row.theirs.values) == 1
        assert row.ours.middle > 0 and row.theirs.middle > 0
    assert throughput.higher_is_better and throughput.unit == "tokens/s"


def test_the_bare_sampler_has_all_cores(tmp_path: Path) -> None:
    """As the engine's sampler has; with fewer it would be no bound."""
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as process:
        process.submit(Bare.start, make_base(tmp_path / "base", rows=1500).path, "f32", 4, 64).result()
        assert process.submit(torch_threads).result() == len(os.sched_getaffinity(0))


def torch_threads() -> int:
    import torch

    return torch.get_num_threads()
