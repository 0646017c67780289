"""Two kinds of samplers side by side: tasks train on both, and outlive the death of one.

In ``make test-slow``, too, that a deterministic task repeats itself there, and that two alike are both busy.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from ..conftest import PATIENCE, Lab, configured, outlived

MEASURED = 2
"""Turns of the evaluations, before the first step and after the last."""

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A home whose settings name both."""
    with configured(tmp_path_factory.mktemp("both"), '[rollout]\nsamplers = ["llama.cpp", "torch"]\n') as lab:
        yield lab


@pytest.fixture(scope="module")
def equal(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A home with two samplers that are alike."""
    with configured(tmp_path_factory.mktemp("equal"), '[rollout]\nsamplers = ["torch", "torch"]\n') as lab:
        yield lab


@pytest.mark.slow
def test_a_task_with_one_group_at_a_time_keeps_both_busy(equal: Lab) -> None:
    """By its number the whole group would be at one sampler, and the other one would have nothing to do."""
    train = {"groups_per_step": 1, "group_size": 8, "max_staleness": 0}
    task = equal.submit("alone", steps=1, train=train, sampling={"max_tokens": 24}, eval={"prompts": 1})
    equal.marlaas("wait", str(task))
    deadline = time.monotonic() + PATIENCE
    while sum((ended := turns_ended(equal)).values()) < 8 + MEASURED and time.monotonic() < deadline:
        time.sleep(0.1)  # what the stages did is stored once a second
    assert sum(ended.values()) == 8 + MEASURED and min(ended.values()) > MEASURED and len(ended) == 2, ended


def turns_ended(lab: Lab) -> dict[str, int]:
    """Turns that each sampler has ended, as stored by now."""
    shown = json.loads(lab.marlaas("stats", "--json", "--since", "1h"))
    return {stage["device"]: stage["ended"] for stage in shown["stages"] if stage["stage"] == "rollout"}


def test_tasks_train_on_both_and_outlive_one(both: Lab) -> None:
    outlived(both, "rollout-2", steps=8)
    shown = json.loads(both.marlaas("stats", "--json", "--since", "1h"))
    rollout = [stage for stage in shown["stages"] if stage["stage"] == "rollout"]
    assert len({stage["device"] for stage in rollout}) == 2 and all(stage["ended"] for stage in rollout), shown
    deadline = time.monotonic() + PATIENCE  # tasks may reach their end on one sampler, before the other has a successor
    while not {"rollout", "rollout-2"} <= {*(workers := devices(both))} and time.monotonic() < deadline:
        time.sleep(0.1)
    assert workers["rollout"] != workers["rollout-2"]


def devices(lab: Lab) -> dict[str, str]:
    """Where each living worker is."""
    return {row["name"]: row["device"] for row in json.loads(lab.marlaas("engine", "status", "--json"))["workers"]}


@pytest.mark.slow
def test_a_deterministic_task_says_the_same_twice_beside_others(both: Lab) -> None:
    settled = {"deterministic": True, "max_staleness": 0}
    first = both.submit("once", steps=3, train=settled)
    both.marlaas("wait", str(first))
    others = [both.submit(f"beside {n}", "guess", steps=4) for n in range(2)]
    again = both.submit("twice", steps=3, train=settled)
    both.marlaas("wait", str(again), *map(str, others))
    checksums = [
        {row["number"]: row["checksum"] for row in json.loads(both.marlaas("adapters", "list", str(task), "--json"))}
        for task in (first, again)
    ]
    assert checksums[0] == checksums[1] and max(checksums[0]) == 3
