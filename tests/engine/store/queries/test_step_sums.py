"""Sums of a policy's steps: what is remembered always says what summing all would."""

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
from marlaas.engine.store.versions import NewVersion

from ....examples import examples

NAMES = count()
"""No two versions have the same name."""
COUNTS = st.dictionaries(st.sampled_from(("tokens", "lost", "errors", "reward")), st.integers(0, 99).map(float))


@pytest.fixture
def reader(store: Store, database: Path) -> Iterator[Reader]:
    with Reader(database) as reader:
        yield reader


@settings(max_examples=examples(12), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(COUNTS | st.integers(-1, 8), max_size=12))
def test_a_sum_is_that_of_all_steps(
    store: Store, policy: int, reader: Reader, database: Path, moves: list[dict[str, float] | int]
) -> None:
    """A move commits a step with these metrics, or takes steps above a number back."""
    other = store.versions.policy(1, "other", {})
    store.versions.void_after(policy, -1)
    step = 0
    with closing(sqlite3.connect(database)) as connection:
        for move in moves:
            if isinstance(move, int):
                store.versions.void_after(policy, move)
                step = max(0, min(step, move))
            else:
                step += 1
                version = NewVersion(step, f"v{next(NAMES)}", "sum", "path", 9)
                store.versions.commit_step(policy, version, [], 1.0, move)
                store.versions.add_metrics(policy, step, {"publish_seconds": 0.5})
            sums = [
                connection.execute("SELECT total(value) FROM metrics WHERE name = ?", [name]).fetchone()[0]
                for name in ("tokens", "lost", "errors")
            ]
            rows = connection.execute("SELECT id, tokens, lost, errors FROM policies").fetchall()
            assert rows == [(policy, *sums), (other, 0, 0, 0)] and reader.tasks()[0].tokens == sums[0]


def test_a_task_without_a_policy_has_none(reader: Reader) -> None:
    assert [task.tokens for task in reader.tasks()] == [0]
