"""A long queue is looked through now and then, not at every task's end: counted in simulated time."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.queue.scheduler import scheduler
from marlaas.engine.simulate.cluster_file import read_case
from marlaas.engine.simulate.simulation import Figures, simulate
from marlaas.engine.store.tasks import QueuedTask, TaskTable

from ...simulate.made_up import NODES, TASKS, cluster

MANY = TASKS.replace("count = 4", "count = 40")


def looks(home: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[list[int], float, Figures]:
    """How many tasks were looked at each time, the simulated seconds, and what came of the tasks, four at once."""
    found: list[int] = []
    unfinished = TaskTable.unfinished

    def counted(table: TaskTable) -> list[QueuedTask]:
        tasks = unfinished(table)
        found.append(len(tasks))
        return tasks

    home.mkdir()
    case = read_case(cluster(home, NODES + MANY))
    with monkeypatch.context() as patched:
        patched.setattr(TaskTable, "unfinished", counted)
        result = simulate(replace(case, spec=replace(case.spec, at_once=4)), home / "home")
    return found, result.simulated, result.figures


def test_a_long_queue_is_looked_at_by_the_second(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    short, _, expected = looks(tmp_path / "short", monkeypatch)
    monkeypatch.setattr(scheduler, "LONG", 0)
    monkeypatch.setattr(scheduler, "LOOKED_AT", 10.0)
    found, seconds, figures = looks(tmp_path / "long", monkeypatch)
    assert figures.done == expected.done == 40 and figures.gaps == figures.beyond == 0
    assert len(found) < len(short), "as often as there are seconds and ends of tasks"
    assert sum(found) <= 10.0 * seconds + 40, "what is submitted is looked at whenever it comes"
