"""How fast a task goes: a pause, or another engine, is no slow step."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import pytest

from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import PaceRow
from marlaas.engine.store.store import Store

from .test_history import train


def write(database: Path, sql: str, rows: Sequence[Sequence[float]] = ((),)) -> None:
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.executemany(sql, rows)


@pytest.fixture
def made(store: Store, policy: int, database: Path) -> Store:
    """Nine steps, ten seconds apart, with an hour between the fifth and the sixth."""
    train(store, policy, range(1, 10), tokens=100.0)
    times = [[1000.0 + 10 * step + (3600 if step > 5 else 0), step] for step in range(1, 10)]
    write(database, "UPDATE steps SET created = ? WHERE number = ?", times)
    return store


def pace(database: Path) -> PaceRow | None:
    with Reader(database) as reader:
        return reader.pace(1)


def test_a_pause_of_an_hour_is_no_slow_step(made: Store, database: Path) -> None:
    made.telemetry.event("task", "The task is queued (resume).", 1)
    write(database, "UPDATE events SET created = 2000")
    assert pace(database) == PaceRow(10.0, 100.0, 7)


def test_nor_is_the_time_without_an_engine(made: Store, database: Path) -> None:
    write(database, "INSERT INTO engines (pid, state, started, heartbeat) VALUES (1, 'running', 2000, 2000)")
    assert pace(database) == PaceRow(10.0, 100.0, 7)


def test_a_slow_step_is_slow(made: Store, database: Path) -> None:
    """What is said of other tasks, or of what the task does as it goes on, is no pause."""
    made.telemetry.event("task", "The task is queued (resume).", None)
    made.telemetry.event("evaluation", "No held-out score at step 5.", 1)
    write(database, "UPDATE events SET created = 2000")
    found = pace(database)
    assert found is not None and found.seconds == (7 * 10 + 3610) / 8 and found.steps == 8


def test_there_is_none_before_two_steps_without_a_pause(store: Store, policy: int, database: Path) -> None:
    train(store, policy, range(1, 2))
    assert pace(database) is None
    train(store, policy, range(2, 3))
    write(database, "UPDATE steps SET created = ? WHERE number = ?", [[0.0, 1], [4000.0, 2]])
    store.telemetry.event("task", "The task waits: it was paused.", 1)
    write(database, "UPDATE events SET created = 2000")
    assert pace(database) is None
