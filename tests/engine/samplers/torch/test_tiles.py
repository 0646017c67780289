"""Tiles hold every row once, under its own adapter, in few calls."""

import numpy as np
from hypothesis import given, strategies as st

from marlaas.engine.samplers.torch.cache import BRIDGE, TILE, BlockSlot, Tiling, tiling

places = st.builds(BlockSlot, st.sampled_from([8, 16, 64]), st.integers(0, 40))


def plan(rows: list[BlockSlot]) -> Tiling:
    return tiling({place: np.array([n for n, own in enumerate(rows) if own == place]) for place in set(rows)})


def owners(plan: Tiling) -> list[BlockSlot]:
    """Of each tile."""
    found = []
    for segment in plan.segments:
        count, slots = segment.tiles.stop - segment.tiles.start, range(segment.slots.start, segment.slots.stop)
        assert len(slots) in (1, count)
        found += [BlockSlot(segment.rank, slot) for slot in (slots if len(slots) == count else list(slots) * count)]
    return found


@given(st.lists(places, min_size=1, max_size=60))
def test_every_row_stands_once_in_a_tile_of_its_own_adapter(rows: list[BlockSlot]) -> None:
    made = plan(rows)
    tiles = owners(made)
    assert len(made.rows) == len(tiles) * TILE and len(set(made.places.tolist())) == len(rows)
    for row, place in enumerate(made.places.tolist()):
        assert made.rows[place] == row and tiles[place // TILE] == rows[row]


@given(st.lists(places, min_size=1, max_size=60))
def test_tiles_follow_in_order_in_a_call_per_adapter(rows: list[BlockSlot]) -> None:
    made = plan(rows)
    bounds = [0, *[segment.tiles.stop for segment in made.segments]]
    assert [segment.tiles.start for segment in made.segments] == bounds[:-1]
    assert bounds[-1] * TILE == len(made.rows) and len(made.segments) <= len(set(rows))


def test_rows_of_one_adapter_stay_and_take_one_call() -> None:
    made = plan([BlockSlot(16, 7)] * (5 * TILE))
    assert made.plain and len(made.segments) == 1


def test_neighbours_take_one_call_though_some_are_absent() -> None:
    slots = [0, 1, 2, 3 + BRIDGE, 4 + BRIDGE]
    assert len(plan([BlockSlot(16, slot) for slot in slots]).segments) == 1
    assert len(plan([BlockSlot(16, 0), BlockSlot(16, 2 + BRIDGE)]).segments) == 2


def test_neighbours_with_one_long_one_among_them_take_two_calls() -> None:
    rows = [BlockSlot(16, slot) for slot in range(32)] + [BlockSlot(16, 5)] * (9 * TILE)
    assert len(plan(rows).segments) == 2


def test_another_rank_is_another_call() -> None:
    assert len(plan([BlockSlot(8, 0), BlockSlot(16, 0)]).segments) == 2
