"""Batches between bridge and node hosts: whole, in order, small enough."""

from __future__ import annotations

from collections import deque

from hypothesis import given, strategies as st

from marlaas.engine.machine.cluster.node_host import (
    OVERHEAD,
    Begin,
    Data,
    Ended,
    Event,
    InOrder,
    Printed,
    batch,
    gathered,
    size,
)

events = st.lists(
    st.one_of(
        st.builds(Data, st.integers(0, 3), st.binary(max_size=700)),
        st.builds(Printed, st.integers(0, 3), st.binary(max_size=700)),
        st.builds(Begin, st.integers(0, 3), st.just("worker")),
        st.builds(Ended, st.integers(0, 3), st.just(0)),
    )
)


def streams(told: list[Event]) -> dict[tuple[type, int], bytes]:
    """What each child has said, as one piece."""
    found: dict[tuple[type, int], bytes] = {}
    for event in told:
        if isinstance(event, Data | Printed):
            key = type(event), event.child
            found[key] = found.get(key, b"") + event.data
    return {key: data for key, data in found.items() if data}


@given(events, st.integers(1, 900))
def test_batches_hold_all_and_each_fits(told: list[Event], limit: int) -> None:
    waiting = deque(told)
    batches = []
    while waiting:
        batches.append(batch(waiting, limit))
        assert batches[-1] and sum(size(event) for event in batches[-1][:-1]) < limit
        assert all(size(event) <= limit + OVERHEAD for event in batches[-1])
    flat = [event for part in batches for event in part]
    assert streams(flat) == streams(told)
    whole = Begin, Ended
    assert [e for e in flat if isinstance(e, whole)] == [e for e in told if isinstance(e, whole)]


@given(st.permutations(range(6)), st.lists(st.integers(0, 5), max_size=3))
def test_batches_come_in_order_and_once(numbers: list[int], again: list[int]) -> None:
    order = InOrder()
    heard: list[Event] = []
    for number in (*numbers, *again):
        heard += order.accept(number, (Data(number, b""),))
    assert [event.child for event in heard] == list(range(6))


def test_large_data_go_in_several_batches() -> None:
    parts = gathered([Data(1, bytes(250_000))])
    assert len(parts) == 3 and sum(len(event.data) for (event,) in parts if isinstance(event, Data)) == 250_000
