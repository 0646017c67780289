"""The bridge's side of one node host: what it sends to children there and hears of them, and how the host is lost.

The host is lost once, with a reason: its process or node has died, Ray cannot reach it, or a call to it has failed. All
its children have then ended for the engine, and the host is killed where it still lives.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine
from typing import Any, Protocol, cast

from ..devices import Link
from ..errors import WorkerDied
from .relay import WINDOW, Begin, Ended, Event, InOrder, gathered
from .usable import link_of

CONNECT = 60.0
"""Seconds that a node host may take to start: a process that imports Ray and numpy, on a busy machine."""
SAMPLE = 80_000
"""Bytes with which a link is measured: they go inside the call."""
ECHOES = 5
AT_ONCE = 16
"""Pieces in one call to a node host: Ray has 10 MB of arguments inside a call."""


class HostLost(Exception):
    """The node host is gone; the text says why."""


class Host(Protocol):
    """One node host, wherever it runs."""

    async def call(self, method: str, *args: Any) -> tuple[Any, Any]:
        """Call a method of ``NodeHost``: a reference to what it returns, and that.

        Raises ``HostLost``, ``MarlaasError`` of its own, and anything else that goes wrong on the way.
        """

    def kill(self) -> None:
        """End it, and with it its children."""


class NodeLink:
    """One node host that was just started. All methods belong to the bridge's event loop."""

    def __init__(self, host: Host) -> None:
        self.lost = ""
        """Why nothing more can come of it; empty while it lives."""
        self.link = Link()
        """Measured when it was connected."""
        self.clock = 0.0
        """Seconds by which the node's clock is ahead."""
        self._host = host
        self._children: dict[int, tuple[Callable[[Event], None], asyncio.Future[Ended]]] = {}
        self._waiting: deque[Event] = deque()
        self._sent = 0
        self._under_way = 0
        self._arrived = InOrder()
        self._tasks: set[asyncio.Task[None]] = set()
        self._connected = False
        self._ready = asyncio.ensure_future(self._connect())

    async def child(self, begin: Begin, on_event: Callable[[Event], None]) -> Ended:
        """Start a child; ``on_event`` gets what it does, in order. Returns when it has ended, or the host is lost."""
        end: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        if self.lost:
            return Ended(begin.child, None, self.lost)
        self._children[begin.child] = on_event, end
        self.tell(begin)
        try:
            return await end
        finally:
            self._children.pop(begin.child, None)

    def tell(self, event: Event) -> None:
        """Send an event, with all others that wait, as soon as fewer than ``WINDOW`` batches are under way."""
        if not self.lost:
            self._waiting.append(event)
            self._pump()

    async def call(self, method: str, *args: Any) -> Any:
        """Call the node host. Raises ``WorkerDied`` where it is lost, and what the method raises."""
        return (await self.fetch(method, *args))[1]

    async def fetch(self, method: str, *args: Any) -> tuple[Any, Any]:
        """The same, with Ray's reference to the answer, which keeps it in the object store."""
        await self._ready
        return await self._ask(method, *args)

    async def _ask(self, method: str, *args: Any) -> tuple[Any, Any]:
        if self.lost:
            raise WorkerDied(self.lost)
        try:
            return await self._host.call(method, *args)
        except HostLost as error:
            self.lose(str(error))
            raise WorkerDied(self.lost) from None

    async def _connect(self) -> None:
        try:
            async with asyncio.timeout(CONNECT):
                await self._measure()
        except TimeoutError:
            return self.lose(f"the node host did not start within {CONNECT:.0f} s")
        except WorkerDied:
            return
        except Exception as error:
            return self.lose(f"the node host cannot start: {type(error).__name__}: {error}")
        self._connected = True
        for _ in range(WINDOW):
            self._do(self._receive())
        self._pump()

    async def _measure(self) -> None:
        await self._ask("echo")
        calls, clocks = [], []
        for _ in range(ECHOES):
            asked, begun = time.time(), time.perf_counter()
            _, (_, there) = await self._ask("echo")
            calls.append(time.perf_counter() - begun)
            clocks.append((calls[-1], there - asked - calls[-1] / 2))
        begun = time.perf_counter()
        await self._ask("echo", bytes(SAMPLE))
        self.link = link_of(calls, SAMPLE, time.perf_counter() - begun)
        self.clock = min(clocks)[1]

    def _pump(self) -> None:
        while self._connected and self._waiting and self._under_way < WINDOW and not self.lost:
            batches = gathered([self._waiting.popleft() for _ in range(len(self._waiting))])
            for event in reversed([event for late in batches[AT_ONCE:] for event in late]):
                self._waiting.appendleft(event)
            number, self._sent = self._sent, self._sent + 1
            self._under_way += 1
            self._do(self._send(number, batches[:AT_ONCE]))

    async def _send(self, number: int, batches: list[tuple[Event, ...]]) -> None:
        await self._ask("take", number, *batches)
        self._under_way -= 1
        self._pump()

    async def _receive(self) -> None:
        while not self.lost:
            _, (number, events) = cast(tuple[Any, tuple[int, tuple[Event, ...]]], await self._ask("give"))
            for event in self._arrived.accept(number, events):
                self._hand_on(event)

    def _hand_on(self, event: Event) -> None:
        on_event, end = self._children.get(event.child, (None, None))
        if on_event is None or end is None:
            return  # of a child that the engine has given up
        if isinstance(event, Ended):
            if not end.done():
                end.set_result(event)
        else:
            on_event(event)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        async def guarded() -> None:
            try:
                await work
            except WorkerDied:  # it is lost already
                pass
            except Exception as error:  # the children's streams have a gap: they are of no use any more
                self.lose(f"the way to its node has failed: {type(error).__name__}: {error}")

        task = asyncio.ensure_future(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def lose(self, reason: str) -> None:
        """Give the host up: its children are ended, for the engine at once."""
        if self.lost:
            return
        self.lost = reason
        self._waiting.clear()
        for child, (_, end) in list(self._children.items()):
            if not end.done():
                end.set_result(Ended(child, None, reason))
        self._host.kill()
