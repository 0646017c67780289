"""Another program's lock: nothing is lost by it, nobody waits longer than a moment, and it is gone when it is gone."""

from __future__ import annotations

import asyncio
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic

import pytest

from marlaas.engine.errors import DatabaseLocked, StoreError
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import PATIENCE, Store


@contextmanager
def another_programs_lock(database: Path) -> Iterator[None]:
    other = sqlite3.connect(database, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    try:
        yield
    finally:
        other.close()


def test_only_the_first_call_waits(store: Store, database: Path) -> None:
    store.serve()
    with another_programs_lock(database):
        began = monotonic()
        with pytest.raises(DatabaseLocked, match="Another program holds the database"):
            store.tasks.set_state(1, "running")
        first = monotonic() - began
        for _ in range(100):
            with pytest.raises(DatabaseLocked):
                store.tasks.set_state(1, "running")
        others = monotonic() - began - first
        assert store.locked and store.tasks.state(1) == "submitted", "it can be read"
    assert first >= PATIENCE * 0.8, "sqlite counts its sleeps, of which the last may be cut short"
    assert others < 100 * PATIENCE / 2, "a hundred that waited would take twice as long at least"
    assert not store.locked
    store.tasks.set_state(1, "running")
    assert store.tasks.state(1) == "running"


def test_a_refusal_of_another_kind_is_no_lock(store: Store) -> None:
    with pytest.raises(StoreError) as refused:
        store.versions.policy(99, "of no task", {})
    assert not isinstance(refused.value, DatabaseLocked) and not store.locked


async def test_what_must_be_written_waits_beside_the_loop(store: Store, database: Path) -> None:
    store.serve()
    with another_programs_lock(database):
        writing = asyncio.ensure_future(store.patiently(lambda: store.versions.policy(1, "policy", {})))
        for _ in range(50):
            await asyncio.sleep(0)
        assert not writing.done()
    assert await writing == 1


async def test_lines_of_the_log_are_held_back_in_their_order(store: Store, database: Path) -> None:
    store.serve()
    with another_programs_lock(database):
        for number in range(3):
            store.telemetry.event("kind", f"line {number}")
    store.telemetry.heartbeat(store.incarnation, "running")
    with Reader(database) as reader:
        assert [event.message for event in reader.events()] == ["line 0", "line 1", "line 2"]
