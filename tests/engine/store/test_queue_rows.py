"""What the app inserts, what the engine makes of it, and what refuses."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from marlaas.engine.errors import StoreError, UnknownTask
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import QueueSpec, TaskSpec
from marlaas.engine.store.database import open_database
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import Reason
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import command, submit
from marlaas.engine.store.tasks import Needed
from marlaas.engine.store.telemetry import TelemetryTable


def test_the_queue_runs_by_priority_then_by_age(store: Store, database: Path) -> None:
    urgent = TaskSpec("lab", "urgent", "guess", queue=QueueSpec(priority=5))
    assert submit(database, [submission(urgent), submission(TaskSpec("b", "c", "d"))]) == [2, 3]
    assert [task.id for task in store.tasks.unfinished()] == [2, 1, 3]


def test_a_stop_that_nobody_heard_is_not_for_the_next_engine(store: Store, database: Path) -> None:
    command(database, "stop")
    command(database, "drain")
    store.tasks.forget_stops(before=0.0)
    assert [waiting.kind for waiting in store.tasks.new_commands()] == ["stop", "drain"]
    command(database, "pause", 1)
    store.tasks.forget_stops(before=float("inf"))
    assert [waiting.kind for waiting in store.tasks.new_commands()] == ["pause"]


def test_states_carry_their_times(store: Store, database: Path) -> None:
    store.tasks.set_state(1, "running")
    store.tasks.add_seconds({1: 1.5})
    with Reader(database) as reader:
        task = reader.task(1)
        assert task is not None and task.started and not task.finished and task.seconds == 1.5
    store.tasks.set_state(1, "failed", Reason(words="no luck"))
    with Reader(database) as reader:
        task = reader.task(1)
        assert task is not None and task.finished and (task.state, task.reason) == ("failed", "no luck")
    assert store.tasks.unfinished() == []


def test_commands_are_carried_out_once(store: Store, database: Path) -> None:
    number = command(database, "pause", 1)
    (waiting,) = store.tasks.new_commands()
    assert (waiting.id, waiting.kind, waiting.task) == (number, "pause", 1)
    store.tasks.finish_command(number, "not now")
    assert store.tasks.new_commands() == []
    with Reader(database) as reader:
        assert reader.command_outcomes([number]) == {number: "not now"}


def test_commands_for_nobody_are_refused(store: Store, database: Path) -> None:
    with pytest.raises(UnknownTask, match="no task 7"):
        command(database, "cancel", 7)
    with pytest.raises(ValueError, match="no command"):
        command(database, "explode", 1)


def test_a_reader_sees_that_something_changed(store: Store, database: Path) -> None:
    with Reader(database) as reader:
        before = reader.changed()
        assert reader.changed() == before
        store.tasks.set_state(1, "running")
        assert reader.changed() != before


def test_readers_cannot_write(store: Store, database: Path) -> None:
    with Reader(database) as reader, pytest.raises(StoreError, match="readonly"):
        reader.all("DELETE FROM tasks")


def test_what_is_no_database_is_said_to_be_none(tmp_path: Path) -> None:
    path = tmp_path / "marlaas.db"
    with pytest.raises(StoreError, match="no database"):
        Reader(path)
    path.write_text("this is no database" * 100)
    with pytest.raises(StoreError, match=r"Move marlaas\.db"):
        open_database(path)


def test_a_full_disk_is_named(store: Store, database: Path) -> None:
    with closing(open_database(database)) as opened, pytest.raises(StoreError, match="Free some space"):
        opened.execute("PRAGMA max_page_count = 1")
        telemetry = TelemetryTable(opened, database.parent)
        for _ in range(100):
            telemetry.event("filler", "x" * 4000)


def test_what_a_task_needs_is_read_until_it_is_done(store: Store, database: Path) -> None:
    second = replace(submission(TaskSpec("lab", "next", "guess")), needs=(1,))
    assert submit(database, [second, replace(second, spec=replace(second.spec, name="last"), after=(0,))]) == [2, 3]
    tasks = {task.id: task for task in store.tasks.unfinished()}
    assert tasks[2].needs == (Needed(1, "sums", "submitted", 0, 60),)
    assert [needed.id for needed in tasks[3].needs] == [1, 2]
    store.tasks.set_state(1, "done")
    tasks = {task.id: task for task in store.tasks.unfinished()}
    assert tasks[2].needs == () and [needed.id for needed in tasks[3].needs] == [2]
