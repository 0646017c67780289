"""Many kills at random moments: nothing that was committed is lost, nothing is trained on twice.

Run by ``make test-slow-kills``; KILLS says how many (200 take about half an hour on 2 cores).
"""

from __future__ import annotations

import os
import random
import signal
import time

import pytest

from marlaas.engine.daemon import control
from tests.end_to_end.conftest import Lab, consumed_once

pytestmark = [pytest.mark.slow, pytest.mark.timeout(3600)]

VICTIMS = ("engine", "rollout", "training", "marlaas.plugins.host")
KILLS = int(os.environ.get("KILLS", "40"))


def test_random_kills(lab: Lab) -> None:
    rng = random.Random(0)
    slow = {"groups_per_step": 2, "group_size": 4, "learning_rate": 1e-6}  # a solved task would end
    tasks = [
        lab.submit("sums", "arithmetic", steps=100_000, train=slow, eval={"prompts": 4, "every": 7}),
        lab.submit("guesses", "guess", steps=100_000, train=slow, eval={"prompts": 4, "every": 7}),
    ]
    for task in tasks:
        lab.until(task, 1)
    committed = dict.fromkeys(tasks, 0)
    for kill in range(KILLS):
        time.sleep(rng.expovariate(1.5))  # the moment is the experiment
        victim = rng.choice(VICTIMS)
        if victim == "engine":
            lab.kill_engine()
        else:
            for pid in lab.worker_pids(victim):
                os.kill(pid, signal.SIGKILL)
        for task in tasks:
            row = lab.row(task)
            assert row.step >= committed[task], f"kill {kill} ({victim}): task {task} lost steps"
            assert row.state in ("running", "queued"), f"kill {kill} ({victim}): {row.state}: {row.reason}"
            committed[task] = row.step
        control.ensure_running(lab.home)
    for task in tasks:
        assert lab.until(task, committed[task] + 3).step >= committed[task] + 3
        lab.marlaas("cancel", str(task))
        consumed_once(lab.home, task)
