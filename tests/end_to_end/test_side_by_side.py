"""Two kinds of samplers side by side: tasks train on both, and outlive the death of one."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.lock import holder
from marlaas.engine.paths import Home

from .conftest import Lab, consumed_once

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A home whose settings name both."""
    lab = Lab(Home(tmp_path_factory.mktemp("both") / "home").create())
    lab.home.config.write_text('[rollout]\nsamplers = ["llama.cpp", "torch"]\n')
    control.ensure_running(lab.home)
    yield lab
    if holder(lab.home.lock) is not None:
        control.stop(lab.home)


def test_tasks_train_on_both_and_outlive_one(both: Lab) -> None:
    tasks = [
        both.submit("sums", "arithmetic", steps=8, train={"max_staleness": 1}),
        both.submit("guesses", "guess", steps=8),
    ]
    both.until(tasks[0], 2)
    (second,) = both.worker_pids("rollout-2")
    os.kill(second, signal.SIGKILL)
    both.marlaas("wait", *map(str, tasks))
    for task in tasks:
        assert both.show(task)["step"] == 8
        consumed_once(both.home, task)
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
