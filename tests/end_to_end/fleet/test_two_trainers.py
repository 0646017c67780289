"""Two training workers in the real program: tasks learn side by side, and outlive ``kill -9`` of either.

In ``make test-slow``: every day, real trainers die in ``tests/engine/machine/test_replacements.py``.
"""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ..conftest import PATIENCE, configured, outlived

pytestmark = [pytest.mark.processes, pytest.mark.slow]


@pytest.mark.parametrize("worker", ["training", "training-2"])
def test_tasks_outlive_one_of_two_trainers(tmp_path: Path, worker: str) -> None:
    with configured(tmp_path, "[training]\ntrainers = 2\n") as lab:
        others = [name for name in ("rollout", "training", "training-2") if name != worker]
        before = {name: lab.worker_pids(name) for name in others}
        outlived(lab, worker, steps=25)
        assert {name: lab.worker_pids(name) for name in others} == before, "nothing else began anew"
        deadline = time.monotonic() + PATIENCE
        while not lab.worker_pids(worker):
            assert time.monotonic() < deadline, "another one takes its place"
            time.sleep(0.05)  # the engine is another process: there is nothing to await
