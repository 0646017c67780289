"""Which base a task belongs to: written at submission, or by the first engine that serves an older database."""

from __future__ import annotations

from pathlib import Path

from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.database import open_database
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import BoundTask
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import Submission, submit
from marlaas.engine.store.versions import NewVersion


def bound(database: Path) -> list[BoundTask]:
    with Reader(database) as reader:
        return reader.bound_tasks()


def test_tasks_from_before_get_the_base_that_is_served_first(database: Path) -> None:
    open_database(database).close()
    submit(database, [submission(TaskSpec("lab", "old", "arithmetic"))])
    assert [task.base for task in bound(database)] == [""]
    for fingerprint in ("aaaa", "bbbb"):
        store = Store(database, f"base {fingerprint}", fingerprint)
        store.tasks.adopt(fingerprint)
        store.close()
    (task,) = bound(database)
    assert (task.base, task.base_name, task.versions) == ("aaaa", "base aaaa", 0)


def test_a_submission_says_its_base(store: Store, database: Path) -> None:
    plain = submission(TaskSpec("lab", "b", "arithmetic"))
    submit(database, [Submission(**{**vars(plain), "base": "cccc"})])
    store.tasks.adopt("dddd")
    assert [task.base for task in bound(database)] == ["dddd", "cccc"]


def test_only_the_unfinished_and_those_with_adapters_count(store: Store, database: Path, policy: int) -> None:
    store.tasks.set_state(1, "done")
    assert bound(database) == []
    version = store.versions.commit_first(policy, NewVersion(0, "task-1/v0", "sum", "adapters/task-1/v0", 70))
    (task,) = bound(database)
    assert (task.id, task.state, task.versions, task.size) == (1, "done", 1, 70)
    assert store.versions.on_disk(1) == [version] and store.versions.on_disk(2) == []
    store.versions.prune(version.id)
    assert bound(database) == [] and store.versions.on_disk(1) == []
    store.tasks.set_state(1, "paused")
    assert [task.state for task in bound(database)] == ["paused"]


def test_the_engine_writes_down_what_it_serves(database: Path) -> None:
    Store(database, "org/model", "eeee").close()
    with Reader(database) as reader:
        engine = reader.engine()
    assert engine is not None and (engine.base, engine.fingerprint) == ("org/model", "eeee")
