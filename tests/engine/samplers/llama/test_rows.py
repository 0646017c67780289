"""Which rows a call computes: the arithmetic behind repeatable bits."""

import numpy as np
from hypothesis import given, strategies as st

from marlaas.engine.samplers.llama.context import BRIDGE, rows_with_fillers
from marlaas.engine.samplers.llama.mixing import micro_batches, window

sequences = st.sets(st.integers(0, 63), min_size=1).map(lambda ids: np.array(sorted(ids), np.int32))


@given(sequences)
def test_rows_come_in_runs_of_two_and_more(active: np.ndarray) -> None:
    rows = rows_with_fillers(active)
    assert set(active.tolist()) <= set(rows.tolist()) <= set(range(64))
    assert rows.tolist() == sorted(set(rows.tolist()))
    assert all(len(run) >= 2 for run in np.split(rows, np.flatnonzero(np.diff(rows) > 1) + 1))


@given(sequences)
def test_fillers_are_few(active: np.ndarray) -> None:
    assert len(rows_with_fillers(active)) - len(active) <= (BRIDGE + 1) * len(active)
    unbroken = np.arange(8, 24, dtype=np.int32)
    assert np.array_equal(rows_with_fillers(unbroken), unbroken)


def test_holes_are_filled_up_to_the_bridge() -> None:
    for hole, rows in ((BRIDGE, 4 + BRIDGE), (BRIDGE + 1, 4)):
        active = np.array([0, 1, 2 + hole, 3 + hole], np.int32)
        assert len(rows_with_fillers(active)) == rows


@given(st.integers(1, 30), st.data())
def test_products_have_two_rows_if_there_are_two(rows: int, data: st.DataObject) -> None:
    begin = data.draw(st.integers(0, rows - 1))
    end = data.draw(st.integers(begin + 1, rows))
    first, last = window(begin, end, rows)
    assert 0 <= first <= begin < end <= last <= rows
    assert last - first == max(min(2, rows), end - begin)


@given(sequences, st.integers(1, 20))
def test_a_micro_batch_holds_neighbours(ids: np.ndarray, most: int) -> None:
    parts = [ids[rows].tolist() for rows in micro_batches(ids, most)]
    assert [each for part in parts for each in part] == ids.tolist()
    assert all(part == list(range(part[0], part[0] + len(part))) and len(part) <= most for part in parts)
