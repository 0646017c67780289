"""Two kinds of samplers side by side: tasks train on both, and outlive the death of one."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from .conftest import Lab, configured, outlived

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A home whose settings name both."""
    with configured(tmp_path_factory.mktemp("both"), '[rollout]\nsamplers = ["llama.cpp", "torch"]\n') as lab:
        yield lab


def test_tasks_train_on_both_and_outlive_one(both: Lab) -> None:
    outlived(both, "rollout-2", steps=8)
    shown = json.loads(both.marlaas("stats", "--json", "--since", "1h"))
    rollout = [stage for stage in shown["stages"] if stage["stage"] == "rollout"]
    assert len({stage["device"] for stage in rollout}) == 2 and all(stage["ended"] for stage in rollout), shown
    workers = {row["name"]: row["device"] for row in json.loads(both.marlaas("engine", "status", "--json"))["workers"]}
    assert workers["rollout"] != workers["rollout-2"]


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
