"""Which rows have which adapter: the arithmetic of mixed micro-batches."""

from itertools import pairwise

import numpy as np
from hypothesis import given, strategies as st

from marlaas.engine.samplers.llama.mixing import Run, micro_batches, runs, window

adapters = st.lists(st.integers(1, 3), min_size=1, max_size=30).map(lambda each: np.array(each, np.int64))
sequences = st.sets(st.integers(0, 60), min_size=1).map(lambda ids: np.array(sorted(ids), np.int32))


@given(adapters)
def test_runs_are_as_long_as_can_be_and_hold_every_row(rows: np.ndarray) -> None:
    found = runs(rows)
    assert [run.adapter for run in found for _ in range(run.begin, run.end)] == rows.tolist()
    assert all(one.end == other.begin and one.adapter != other.adapter for one, other in pairwise(found))


@given(adapters)
def test_products_have_two_rows_where_there_are_two(rows: np.ndarray) -> None:
    for run in runs(rows):
        begin, end = window(run, len(rows))
        assert 0 <= begin <= run.begin < run.end <= end <= len(rows)
        assert end - begin >= min(2, len(rows)) and end - begin <= max(2, run.end - run.begin)


def test_a_lone_row_takes_a_neighbour() -> None:
    assert window(Run(0, 1, 7), 5) == (0, 2)
    assert window(Run(4, 5, 7), 5) == (3, 5)
    assert window(Run(0, 1, 7), 1) == (0, 1)


@given(sequences, st.integers(1, 20))
def test_a_micro_batch_holds_neighbours(ids: np.ndarray, most: int) -> None:
    parts = [ids[rows].tolist() for rows in micro_batches(ids, most)]
    assert [each for part in parts for each in part] == ids.tolist()
    assert all(part == list(range(part[0], part[0] + len(part))) and len(part) <= most for part in parts)
