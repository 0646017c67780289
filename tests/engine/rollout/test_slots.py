"""Which sequence ids and rows: the arithmetic behind repeatable decoding."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from marlaas.engine.rollout.llama.slots import BRIDGE, Slots, rows_with_fillers

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
    taken = [slots.take(version) for version in ("a", "b", "a", "b", "a")]
    assert taken == [0, 2, 1, 3, 4]
    assert [slots.take("c") for _ in range(3)] == [6, 7, 5]
    assert slots.free == 0
    with pytest.raises(LookupError):
        slots.take("a")
    slots.give_back(2)
    assert (slots.free, slots.take("c")) == (1, 2)
