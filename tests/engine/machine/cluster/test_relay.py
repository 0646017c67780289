"""Numbered messages between bridge and node hosts come in order and once."""

from __future__ import annotations

from hypothesis import given, strategies as st

from marlaas.engine.machine.cluster.node_host import InOrder


@given(st.permutations(range(6)))
def test_messages_come_in_order_and_once(numbers: list[int]) -> None:
    order = InOrder[int]()
    assert [due for number in numbers for due in order.accept(number, number)] == list(range(6))
