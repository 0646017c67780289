"""Two training workers in the real program: tasks learn side by side, and outlive ``kill -9`` of either."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import configured, outlived

pytestmark = [pytest.mark.processes, pytest.mark.timeout(240)]


@pytest.mark.parametrize("worker", ["training", "training-2"])
def test_tasks_outlive_one_of_two_trainers(tmp_path: Path, worker: str) -> None:
    with configured(tmp_path, "[training]\ntrainers = 2\n") as lab:
        before = lab.worker_pids("rollout")
        outlived(lab, f" {worker} ", steps=25)
        assert lab.worker_pids("rollout") == before, "nothing else began anew"
        assert len(lab.worker_pids("training")) == 2
