"""The log of events: filtered ids in order, rows by id, and what is text in a filter and no pattern."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.engine.store.queries import machine as events
from marlaas.engine.store.queries.machine import EventFilter
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.store import Store


@pytest.fixture
def reader(store: Store, database: Path) -> Iterator[Reader]:
    for message, task, level, kind in (
        ("The engine serves.", None, "info", "engine"),
        ("Task 100% done_", 1, "info", "task"),
        ("It stumbled.", 1, "warning", "task"),
        ("A worker DIED.", None, "error", "worker"),
        ("Task of nobody.", 99, "error", "task"),
    ):
        store.telemetry.event(kind, message, task, level)
    with Reader(database) as reader:
        yield reader


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        (EventFilter(), [1, 2, 3, 4, 5]),
        (EventFilter(task=1), [2, 3]),
        (EventFilter(tenant="la"), [2, 3]),  # the task's tenant is lab
        (EventFilter(tenant="%"), []),
        (EventFilter(level="warning"), [3, 4, 5]),
        (EventFilter(("died",)), [4]),
        (EventFilter(("task", "nobody")), [5]),
        (EventFilter(("0%",)), [2]),
        (EventFilter(("_",)), [2]),
        (EventFilter(kind="WORK"), [4]),
        (EventFilter(("task",), "error", 99, "", "task"), [5]),
    ],
)
def test_filters(reader: Reader, wanted: EventFilter, found: list[int]) -> None:
    assert list(events.event_ids(reader, wanted)) == found
    assert [row.id for row in events.newest_events(reader, wanted)] == found
    assert list(events.event_ids(reader, wanted, after=3)) == [number for number in found if number > 3]


def test_rows_come_by_id_and_those_that_are_gone_do_not(reader: Reader) -> None:
    found = events.event_rows(reader, [4, 2, 77])
    assert sorted(found) == [2, 4] and found[4].message == "A worker DIED." and events.event_bounds(reader) == (1, 5)
    assert [row.id for row in events.newest_events(reader, EventFilter(), limit=2)] == [4, 5]


def test_an_empty_log(store: Store, database: Path) -> None:
    with Reader(database) as reader:
        assert events.event_bounds(reader) == (0, 0) and not events.event_ids(reader, EventFilter())
