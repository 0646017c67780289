"""A queued task that lacks something is *blocked*, wherever a state is read; to the scheduler it is queued."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import ACTIVE, NO_REASON, Reason, ReasonCode
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.store.tasks import Needed

BLOCKED = Reason(ReasonCode.BLOCKED, "sums.py:12: NameError: name 'x' is not defined.")


def state(database: Path, task: int = 1) -> str:
    with Reader(database) as reader:
        row = reader.task(task)
    assert row is not None
    return row.state


def test_a_task_is_blocked_for_as_long_as_its_reason_says_so(store: Store, database: Path) -> None:
    store.tasks.explain({1: BLOCKED})
    assert state(database) == "blocked" and "blocked" in ACTIVE
    assert store.tasks.state(1) == "queued" and [one.state for one in store.tasks.unfinished()] == ["queued"]
    store.tasks.explain({1: Reason(ReasonCode.SLOTS, "8 of 8 slots are busy")})
    assert state(database) == "queued"
    for other in ("paused", "running", "failed"):
        store.tasks.set_state(1, other, BLOCKED)
        assert state(database) == other, "only a task in the queue is blocked"
    store.tasks.set_state(1, "queued", NO_REASON)
    assert state(database) == "queued"


def test_every_reader_of_a_state_knows_of_it(store: Store, database: Path) -> None:
    spec = TaskSpec("lab", "next", "guess")
    submit(database, [replace(submission(spec), needs=(1,)), submission(spec)])
    store.tasks.explain({1: BLOCKED, 3: Reason(ReasonCode.SLOTS, "the only slot is busy")})
    with Reader(database) as reader:
        (needed,) = reader.needs(2)
        assert needed.state == "blocked"
        counts = {row.name: (row.waiting, row.blocked) for row in reader.tenants("")}
        assert sum(waiting for waiting, _ in counts.values()) == 2 and sum(b for _, b in counts.values()) == 1
        assert [task.state for task in reader.bound_tasks()] == ["blocked", "submitted", "queued"]
    (waiting,) = [one for one in store.tasks.unfinished() if one.needs]
    assert isinstance(waiting.needs[0], Needed) and waiting.needs[0].state == "blocked"
