"""``kill -9`` at any moment loses no committed step and trains on nothing twice."""

from __future__ import annotations

import os
import signal

import pytest

from ...seldom import seldom
from ..conftest import Lab, consumed_once

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def test_a_killed_engine_goes_on_from_the_last_commit(lab: Lab) -> None:
    task = lab.submit("sums", steps=30)
    before = lab.until(task, 3).step
    lab.kill_engine()
    assert lab.row(task).state == "running"
    committed = lab.row(task).step
    assert committed >= before
    lab.marlaas("engine", "start")
    lab.marlaas("wait", str(task))
    assert lab.show(task)["step"] == 30
    consumed_once(lab.home, task)


@pytest.mark.parametrize("worker", [seldom("rollout"), "training", "marlaas.plugins.host"])
def test_a_killed_worker_is_replaced(lab: Lab, worker: str) -> None:
    """Every day a sampler is killed in ``fleet/test_side_by_side``."""
    task = lab.submit("sums", steps=25)
    lab.until(task, 2)
    victims = lab.worker_pids(worker)
    assert victims
    for pid in victims:
        os.kill(pid, signal.SIGKILL)
    lab.marlaas("wait", str(task))
    assert lab.show(task)["step"] == 25
    assert not set(victims) & set(lab.worker_pids(worker))
    consumed_once(lab.home, task)


def test_pause_resume_and_cancel(lab: Lab) -> None:
    task = lab.submit("sums", steps=400)
    lab.until(task, 2)
    lab.marlaas("pause", str(task))
    paused = lab.row(task)
    assert paused.state == "paused"
    lab.marlaas("resume", str(task))
    assert lab.until(task, paused.step + 2).step >= paused.step + 2
    lab.marlaas("cancel", str(task))
    assert lab.row(task).state == "cancelled"
    assert "cancelled" in lab.marlaas("resume", str(task), code=2)
    consumed_once(lab.home, task)
