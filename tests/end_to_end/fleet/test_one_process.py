"""Whole tasks with one process that samples with vLLM and trains, over one copy of the base."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from ..conftest import Lab, consumed_once
from .on_vllm import MARKS, TRAIN, learned, on_vllm

pytestmark = MARKS


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with on_vllm(tmp_path_factory.mktemp("shared"), '[resources]\nshare = "base"\n') as lab:
        yield lab


def test_a_task_learns(lab: Lab) -> None:
    learned(lab)
    assert len(lab.worker_pids("rollout")) == 1 and not lab.worker_pids("training")


def test_no_committed_step_is_lost_with_the_process(lab: Lab) -> None:
    tasks = [lab.submit(name, steps=12, train=TRAIN) for name in ("killed", "beside")]
    lab.until(tasks[0], 3)
    (worker,) = lab.worker_pids("rollout")
    os.kill(worker, signal.SIGKILL)
    committed = lab.row(tasks[0]).step
    lab.marlaas("wait", *map(str, tasks))
    assert worker not in lab.worker_pids("rollout")
    for task in tasks:
        assert lab.show(task)["step"] == 12
        consumed_once(lab.home, task)
    assert committed >= 3
