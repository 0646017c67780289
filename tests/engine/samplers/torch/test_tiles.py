"""Tiles of many adapters are computed in few calls."""

from collections import Counter

from hypothesis import given, strategies as st

from marlaas.engine.samplers.torch.cache import BRIDGE, tile_calls

tiles_of = st.dictionaries(st.integers(0, 40), st.integers(1, 12), min_size=1).map(
    lambda each: dict(sorted(each.items()))
)


@given(tiles_of)
def test_every_tile_is_computed_once_with_its_adapter(counts: dict[int, int]) -> None:
    calls, computed = tile_calls(counts), Counter[tuple[int, int]]()
    for slots, tiles in calls:
        run = range(slots.start, slots.stop)
        assert [slot for slot, _ in tiles] == (list(run) if len(run) > 1 else [slots.start] * len(tiles))
        computed.update(tiles)
    assert {(slot, tile) for slot, count in counts.items() for tile in range(count)} <= computed.keys()
    assert set(computed.values()) == {1} and len(calls) <= len(counts)


def test_tiles_of_one_adapter_take_one_call() -> None:
    assert len(tile_calls({7: 5})) == 1


def test_neighbours_take_one_call_if_some_are_absent() -> None:
    assert len(tile_calls(dict.fromkeys([0, 1, 2, 3 + BRIDGE, 4 + BRIDGE], 1))) == 1
    assert len(tile_calls({0: 1, 2 + BRIDGE: 1})) == 2


def test_neighbours_with_a_long_adapter_take_two_calls() -> None:
    assert len(tile_calls(dict.fromkeys(range(32), 1) | {5: 10})) == 2
