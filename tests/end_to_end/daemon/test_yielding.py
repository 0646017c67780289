"""`marlaas engine yield` on a real engine: its workers are gone within ten seconds, and nothing is lost or doubled.

In ``make test-slow``: two engines, workers that start five times, and 120 steps. Every day, tasks yield in
``tests/engine/queue/scheduler/test_yielding.py``.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

import psutil
import pytest

from marlaas.engine.daemon import control
from marlaas.engine.store.queries.reader import Reader
from tests.oracle.audit import audit

from ..conftest import Lab, configured, consumed_once

pytestmark = [pytest.mark.processes, pytest.mark.slow]

LIMIT = 10.0
"""Seconds that somebody who wants the machine has to wait."""
STEPS = 60
"""More than an engine makes before it yields, however fast it is."""
EXACT = {"deterministic": True, "max_staleness": 0, "groups_per_step": 2, "group_size": 4}


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A home of its own: all that it says is checked at the end."""
    with configured(tmp_path_factory.mktemp("yielding"), "") as lab:
        yield lab


def yields(lab: Lab, *words: str) -> None:
    """Yield, and see all workers end in time."""
    workers = [psutil.Process(pid) for pid in lab.worker_pids("marlaas.engine.machine.workers.host")]
    lab.marlaas("engine", "yield", *words)
    _, alive = psutil.wait_procs(workers, timeout=LIMIT)
    assert not alive and not lab.worker_pids("marlaas.engine.machine.workers.host")


def test_nothing_is_lost_whenever_the_machine_is_wanted(lab: Lab) -> None:
    exact = lab.submit("exact", environment="guess", steps=STEPS, train=EXACT)
    lab.until(exact, 2)
    yields(lab, "--for", "2h")
    stood = lab.row(exact)
    assert stood.state == "queued" and "has yielded the machine until" in stood.reason
    late = lab.submit("late", steps=6, eval={"every": 2})
    lab.kill_engine()
    control.ensure_running(lab.home)
    assert json.loads(lab.marlaas("engine", "status", "--json"))["rest"]["kind"] == "yielded"
    assert not lab.worker_pids("marlaas.engine.machine.workers.host") and lab.row(exact).step == stood.step
    lab.marlaas("engine", "yield", "--for", "1s")
    lab.until(late, 1)
    yields(lab)
    lab.marlaas("engine", "resume")
    yields(lab)  # while the workers start
    lab.marlaas("engine", "resume")
    whole = lab.submit("whole", environment="guess", steps=STEPS, train=EXACT)
    lab.marlaas("wait", str(exact), str(late), str(whole))
    for task in (exact, late, whole):
        consumed_once(lab.home, task)
    with Reader(lab.home.database) as reader:
        broken, alone = ([version.checksum for version in reader.versions(task)] for task in (exact, whole))
    assert broken == alone and len(set(alone)) == STEPS + 1
    report = audit(lab.home.root, updates=False)
    assert not report.problems, report.problems
