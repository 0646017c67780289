"""Whole tasks with vLLM as their sampler, on its build for processors: learned, served, checked, and brought back."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from ..conftest import Lab, consumed_once
from .on_vllm import MARKS, TRAIN, learned, on_vllm

pytestmark = MARKS


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    with on_vllm(tmp_path_factory.mktemp("vllm")) as lab:
        yield lab


def steps(lab: Lab, task: int) -> list[dict[str, Any]]:
    """The metrics of all steps."""
    rows = json.loads(lab.marlaas("metrics", str(task), "--json"))
    return [row["metrics"] for row in rows if row["kind"] == "step"]


def test_a_task_learns(lab: Lab) -> None:
    task = learned(lab)
    made = steps(lab, task)
    assert len(made) == 30
    assert max(row["gap_max"] for row in made) < 1e-4  # float32 on both sides
    resolved = [row["gap_followed"] for row in made if row["gap_resolved"]]
    assert len(resolved) > 20 and all(abs(followed - 1) < 0.05 for followed in resolved)
    assert lab.row(task).adapter_version


def test_tasks_of_several_ranks_side_by_side(lab: Lab) -> None:
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


def test_a_killed_worker_is_replaced_and_leaves_no_folder(lab: Lab) -> None:
    task = lab.submit("killed", steps=12, train=TRAIN)
    lab.until(task, 3)
    (worker,) = lab.worker_pids("rollout")
    os.kill(worker, signal.SIGKILL)
    lab.marlaas("wait", str(task))
    assert lab.show(task)["step"] == 12
    assert worker not in lab.worker_pids("rollout")
    consumed_once(lab.home, task)
    assert len(list(lab.home.scratch.glob("vllm-*"))) == 1


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
