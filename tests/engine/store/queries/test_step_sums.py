"""Tokens of tasks, summed up as steps come: what is remembered always says what summing all would."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store

from ....examples import examples

MOMENTS = count()
"""No two steps are made in the same moment."""


@pytest.fixture
def reader(store: Store, database: Path) -> Iterator[Reader]:
    with Reader(database) as reader:
        yield reader


@pytest.fixture
def connection(store: Store, database: Path) -> Iterator[sqlite3.Connection]:
    """One that lets steps be of no version."""
    with closing(sqlite3.connect(database, isolation_level=None)) as connection:
        connection.execute("PRAGMA synchronous = OFF")
        yield connection


class Course:
    """A policy's steps, made and taken back."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._db = connection
        self.step = 0
        self._db.execute("DELETE FROM policies")
        self._db.execute("INSERT INTO policies (id, task, name, config, step) VALUES (1, 1, 'policy', '{}', 0)")

    def go(self, step: int, tokens: int) -> None:
        """To a step: on, each with so many tokens, or back."""
        for table, column in (("metrics", "step"), ("steps", "number")):
            self._db.execute(f"DELETE FROM {table} WHERE {column} > ?", [step])
        for number in range(self.step + 1, step + 1):
            values = [number, next(MOMENTS)]
            self._db.execute("INSERT INTO steps (policy, number, version, created) VALUES (1, ?, 0, ?)", values)
            self._db.execute("INSERT INTO metrics VALUES (1, ?, 'tokens', ?)", [number, tokens])
        self.step = step
        self._db.execute("UPDATE policies SET step = ?", [step])


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.integers(0, 12), st.integers(1, 99), st.booleans()), max_size=12))
def test_a_sum_is_that_of_all_steps(
    connection: sqlite3.Connection, reader: Reader, moves: list[tuple[int, int, bool]]
) -> None:
    for table in ("metrics", "steps"):
        connection.execute(f"DELETE FROM {table}")
    course = Course(connection)
    for step, tokens, looks in moves:
        course.go(step, tokens)
        if looks:
            (whole,) = connection.execute("SELECT total(value) FROM metrics").fetchone()
            assert reader.tasks()[0].tokens == whole == reader.tasks()[0].tokens


def test_a_task_without_a_policy_has_none(reader: Reader) -> None:
    assert [task.tokens for task in reader.tasks()] == [0]
