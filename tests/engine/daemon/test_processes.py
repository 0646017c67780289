"""What the kernel says of this very process, and of one that is not there."""

from __future__ import annotations

import os
import time

from marlaas.engine.daemon.heartbeat import Processes, Seen, worker_rows

NOBODY = 2**22 + 1
"""Above the largest process id."""


def test_processor_time_is_what_was_spent_since_the_last_look() -> None:
    processes, me = Processes(), ("engine", os.getpid())
    (first,) = processes.look([me, ("gone", NOBODY)])
    assert first.spent > 0 and first.rss > 2**20 and 0 < first.started <= time.time()
    spent = 0.0
    while spent == 0.0:
        sum(range(100_000))
        (again,) = processes.look([me])
        spent = again.spent
    assert spent < first.spent and again.started == first.started


def test_a_workers_own_load_counts_and_names_differ() -> None:
    seen = [Seen("rollout", 7, 100, 1.0, 0.9), Seen("env sums", 8, 10, 1.0, 0.5), Seen("env sums", 9, 10, 1.0, 5.0)]
    rows = worker_rows(seen, {"rollout": 0.25}, {"rollout": "core 0"}, 1.0)
    assert [(row.name, row.busy) for row in rows] == [("rollout", 0.25), ("env sums", 0.5), ("env sums (9)", 1.0)]
    assert [row.device for row in rows] == ["core 0", "", ""]


def test_a_worker_that_is_started_again_is_listed() -> None:
    seen = [Seen("engine", 6, 100, 1.0, 0.1), Seen("rollout", 7, 100, 1.0, 0.9)]
    rows = worker_rows(seen, {}, {"rollout-2": "core 1"}, 1.0, {"rollout", "rollout-2"})
    assert [(row.name, row.state, row.pid) for row in rows] == [
        ("engine", "running", 6),
        ("rollout", "starting", 7),
        ("rollout-2", "starting", None),
    ], "one that has a process takes no calls yet, either"
    assert rows[-1].device == "core 1"
