"""Numbered messages between bridge and node hosts come in order and once."""

from __future__ import annotations

import asyncio
import random
from typing import Any

from hypothesis import given, strategies as st

from marlaas.engine.machine.cluster.bridge import AT_ONCE, WINDOW, NodeLink
from marlaas.engine.machine.cluster.node_host import PIECE, Begin, InOrder, Order


@given(st.permutations(range(6)))
def test_messages_come_in_order_and_once(numbers: list[int]) -> None:
    order = InOrder[int]()
    assert [due for number in numbers for due in order.accept(number, number)] == list(range(6))


class Slow:
    """A host that answers when it is let; notes what it takes."""

    def __init__(self) -> None:
        self.calls: list[tuple[int, tuple[tuple[int, Order], ...]]] = []
        self.go = asyncio.Event()
        self.at_once = self.most = 0

    async def call(self, method: str, *args: Any) -> Any:
        if method == "echo":
            return 0.0
        if method == "give":
            return await asyncio.Future()
        number, *orders = args
        self.calls.append((number, tuple(orders)))
        self.at_once += 1
        self.most = max(self.most, self.at_once)
        await self.go.wait()
        self.at_once -= 1

    def kill(self) -> None: ...


async def test_many_bytes_take_few_calls_and_few_at_once() -> None:
    host, data = Slow(), random.Random(0).randbytes(16 * AT_ONCE * PIECE + 5)
    link = NodeLink(host)
    for child, order in ((1, Begin("x")), (1, data), (2, b""), (1, b"more"), (1, None)):
        link.send(child, order)
    while len(host.calls) < WINDOW:
        await asyncio.sleep(0)
    host.go.set()
    while link._waiting or link._under_way:
        await asyncio.sleep(0)
    assert host.most == WINDOW and len(host.calls) <= 20
    taken = InOrder[tuple[tuple[int, Order], ...]]()
    orders = [order for call in host.calls for due in taken.accept(*call) for order in due]
    assert orders[0] == (1, Begin("x")) and orders[-1] == (1, None) and (2, b"") in orders
    assert all(len(order) <= PIECE for _, order in orders if isinstance(order, bytes))
    assert b"".join(order for child, order in orders if child == 1 and isinstance(order, bytes)) == data + b"more"
    link.lose("the test is over")
