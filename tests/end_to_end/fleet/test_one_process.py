"""Whole tasks with one process that samples with vLLM and trains: over one copy of the base, and by turns."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from .. import conftest
from ..conftest import Lab, configured, consumed_once

pytestmark = [pytest.mark.vllm, pytest.mark.filterwarnings("default"), pytest.mark.timeout(900)]
TRAIN = {"groups_per_step": 4, "group_size": 8}
SETTINGS = """
[engine]
tasks = 4
[rollout]
sampler = "vllm"
sequences = 64
context = 256
largest_rank = 16
[resources]
share = "{share}"
"""


@pytest.fixture(scope="module", params=["base", "sleep"])
def lab(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with configured(tmp_path_factory.mktemp("shared"), SETTINGS.format(share=request.param)) as lab:
        yield lab


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(conftest, "PATIENCE", 400.0)


def test_a_task_learns(lab: Lab) -> None:
    task = lab.submit("learns", steps=30, train=TRAIN, eval={"prompts": 64, "every": 15})
    lab.marlaas("wait", str(task))
    shown = lab.show(task)
    assert (shown["state"], shown["step"]) == ("done", 30)
    scores = [entry["score"] for entry in shown["eval"]]
    assert scores[-1] > scores[0] + 0.1
    consumed_once(lab.home, task)
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
