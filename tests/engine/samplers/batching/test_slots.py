"""Which sequence ids and rows: the arithmetic behind repeatable decoding."""

import numpy as np
import pytest
from hypothesis import given, strategies as st

from marlaas.engine.samplers.batching.context import BRIDGE, Slots, rows_with_fillers

active_ids = st.sets(st.integers(0, 63), min_size=1).map(lambda ids: np.array(sorted(ids), np.int32))


def runs(rows: list[int]) -> list[list[int]]:
    """Rows cut where ids are not neighbours."""
    cut = [n for n in range(1, len(rows)) if rows[n] != rows[n - 1] + 1]
    return [rows[a:b] for a, b in zip([0, *cut], [*cut, len(rows)], strict=True)]


@given(active_ids)
def test_rows_come_in_runs_of_two_and_more(active: np.ndarray) -> None:
    rows = rows_with_fillers(active)
    assert set(active.tolist()) <= set(rows.tolist()) <= set(range(64))
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert all(len(run) >= 2 for run in runs(rows.tolist()))


@given(active_ids)
def test_fillers_are_few(active: np.ndarray) -> None:
    rows = rows_with_fillers(active)
    assert len(rows) - len(active) <= (BRIDGE + 1) * len(active)
    unbroken = np.arange(8, 24, dtype=np.int32)
    assert np.array_equal(rows_with_fillers(unbroken), unbroken)


def test_pairs_belong_to_one_version_where_possible() -> None:
    slots = Slots(8)
    taken = [slots.take(version)[0] for version in ("a", "b", "a", "b", "a")]
    assert taken == [0, 2, 1, 3, 4]
    assert [slots.take("c")[0] for _ in range(3)] == [6, 7, 5]
    assert slots.free == 0
    with pytest.raises(LookupError):
        slots.take("a")
    slots.give_back(2)
    assert (slots.free, slots.take("c")) == (1, [2])


def test_a_group_gets_neighbours_and_leaves_long_runs_to_others() -> None:
    slots = Slots(16)
    first, second = slots.take("a", 4), slots.take("b", 6)
    assert (first, second) == ([0, 1, 2, 3], [4, 5, 6, 7, 8, 9])
    for slot in first:
        slots.give_back(slot)
    assert slots.take("c", 3) == [0, 1, 2]  # the shortest run that is long enough
    assert slots.take("c") == [3]  # the twin
    assert slots.take("d", 6) == [10, 11, 12, 13, 14, 15]
    with pytest.raises(LookupError):
        slots.take("d")


def test_a_group_that_finds_no_run_takes_what_there_is() -> None:
    slots = Slots(8)
    slots.take("a", 8)
    for slot in (1, 4, 5, 6):
        slots.give_back(slot)
    assert slots.take("b", 4) == [4, 5, 1, 6]


def test_larger_holes_are_filled_where_that_is_asked_for() -> None:
    active = np.array([0, 1, 6, 7], np.int32)
    assert rows_with_fillers(active, 3).tolist() == [0, 1, 6, 7]
    assert rows_with_fillers(active, 4).tolist() == list(range(8))
