"""Whole tasks on vLLM's build for processors: learned, served, brought back."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from . import conftest
from .conftest import Lab, configured, consumed_once

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
"""


@pytest.fixture(autouse=True)
def patience(monkeypatch: pytest.MonkeyPatch) -> None:
    """vLLM on a processor starts in minutes."""
    monkeypatch.setattr(conftest, "PATIENCE", 400.0)


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with configured(tmp_path_factory.mktemp("vllm"), SETTINGS) as lab:
        yield lab


def steps(lab: Lab, task: int) -> list[dict[str, Any]]:
    """The metrics of all steps."""
    rows = json.loads(lab.marlaas("metrics", str(task), "--json"))
    return [row["metrics"] for row in rows if row["kind"] == "step"]


def test_a_task_learns_and_outlives_its_worker(lab: Lab) -> None:
    task = lab.submit("learns", steps=30, train=TRAIN, eval={"prompts": 64, "every": 15})
    lab.marlaas("wait", str(task))
    shown, made = lab.show(task), steps(lab, task)
    assert (shown["state"], shown["step"], len(made)) == ("done", 30, 30)
    scores = [entry["score"] for entry in shown["eval"]]
    assert scores[-1] > scores[0] + 0.1 and lab.row(task).adapter_version
    consumed_once(lab.home, task)
    assert max(row["gap_max"] for row in made) < 1e-4  # float32 on both sides
    resolved = [row["gap_followed"] for row in made if row["gap_resolved"]]
    assert len(resolved) > 20 and all(abs(followed - 1) < 0.05 for followed in resolved)

    tasks = [lab.submit(name, steps=12, train=TRAIN) for name in ("killed", "at the same time")]
    lab.until(tasks[0], 3)
    (worker,) = lab.worker_pids("rollout")
    os.kill(worker, signal.SIGKILL)
    committed = lab.row(tasks[0]).step
    lab.marlaas("wait", *map(str, tasks))
    assert committed >= 3 and worker not in lab.worker_pids("rollout")
    for task in tasks:
        assert lab.show(task)["step"] == 12
        consumed_once(lab.home, task)
    assert len(list(lab.home.scratch.glob("vllm-*"))) == 1


def test_tasks_of_several_ranks_at_the_same_time(lab: Lab) -> None:
    tasks = [
        lab.submit("sums", "arithmetic", steps=5, policy={"rank": 16}),
        lab.submit("guess", "guess", steps=5, policy={"rank": 3}, sampling={"temperature": 0.8}),
        lab.submit("words", "calculator", steps=3, policy={"rank": 8}, sampling={"max_tokens": 96}),
    ]
    lab.marlaas("wait", *map(str, tasks))
    for task in tasks:
        assert lab.show(task)["state"] == "done"
        consumed_once(lab.home, task)
        assert max(row["gap_max"] for row in steps(lab, task)) < 1e-4


def test_deleted_adapter_folders_are_missed_by_nobody(lab: Lab) -> None:
    task = lab.submit("folders", steps=12, train=TRAIN)
    lab.until(task, 3)
    (worker,) = lab.worker_pids("rollout")
    for folder in lab.home.scratch.glob("vllm-*"):
        shutil.rmtree(folder)
    lab.marlaas("wait", str(task))
    assert lab.show(task)["state"] == "done" and lab.worker_pids("rollout") == [worker]


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"policy": {"rank": 32}}, "rank 32; vLLM was started for ranks up to 16. Set `largest_rank = 32`"),
        ({"train": {"deterministic": True, "max_staleness": 0}}, "the last bits of what vLLM says"),
    ],
)
def test_what_it_cannot_do_is_refused_in_words(lab: Lab, asked: dict[str, Any], said: str) -> None:
    task = lab.submit(f"refused {len(said)}", steps=2, **asked)
    row = lab.until(task, 2)
    assert row.state in ("paused", "failed") and said in row.reason
