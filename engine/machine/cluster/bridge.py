"""Workers on other nodes: links to their hosts, state files, and Ray."""

from __future__ import annotations

import asyncio
import functools
import itertools
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ...adapters.statefile import put_state
from ...devices.machine import Link
from ...errors import AdapterDamaged, AdapterUnreachable, MarlaasError, WorkerDied
from .node import Node, NodeFacts, Versions, link_of, reason_in, trouble_with, unreached
from .node_host import PIECE, Begin, Ended, Event, Folder, InOrder, NodeHost, Order, checksum_of

# A host is lost once, with all its children.

CONNECT = 60.0
SAMPLE = 80_000
ECHOES = 5
WINDOW = 8
AT_ONCE = 32
"""Orders in one call, 1 MiB at most: Ray has 10 MB of arguments inside a call."""


class HostLost(Exception):
    """The text gives the reason."""


class Host(Protocol):
    """One node host, anywhere."""

    async def call(self, method: str, *args: Any) -> Any:
        """Raises ``HostLost``, the method's ``MarlaasError``, and any error on the way."""

    def kill(self) -> None:
        """End it and its children."""


class NodeLink:
    """A started node host. All methods belong to the bridge's event loop."""

    def __init__(self, host: Host) -> None:
        self.lost = ""
        self.link = Link()
        self.clock = 0.0
        self._host = host
        self._children: dict[int, tuple[Callable[[Event], None], asyncio.Future[Ended]]] = {}
        self._waiting: deque[tuple[int, Order]] = deque()
        self._sent = itertools.count()
        self._under_way = 0
        self._arrived = InOrder[tuple[Event, ...]]()
        self._tasks: set[asyncio.Task[Any]] = set()
        self._ready = asyncio.ensure_future(self._connect())

    async def child(self, number: int, begin: Begin, on_event: Callable[[Event], None]) -> Ended:
        """``on_event`` gets events in order. Returns at the child's end, or the host's loss."""
        if self.lost:
            return Ended(None, self.lost)
        end: asyncio.Future[Ended] = asyncio.get_running_loop().create_future()
        self._children[number] = on_event, end
        self.send(number, begin)
        try:
            return await end
        finally:
            self._children.pop(number, None)

    def send(self, child: int, order: Order) -> None:
        """With all waiting orders, once fewer than ``WINDOW`` calls are in progress."""
        if self.lost:
            return
        if isinstance(order, bytes) and order:
            self._waiting += ((child, order[begin : begin + PIECE]) for begin in range(0, len(order), PIECE))
        else:
            self._waiting.append((child, order))
        self._pump()

    def _pump(self) -> None:
        while self._waiting and self._under_way < WINDOW:
            orders = [self._waiting.popleft() for _ in range(min(AT_ONCE, len(self._waiting)))]
            self._under_way += 1
            self._do(self._take(next(self._sent), orders))

    async def _take(self, number: int, orders: Sequence[tuple[int, Order]]) -> None:
        await self.call("take", number, *orders)
        self._under_way -= 1
        self._pump()

    async def call(self, method: str, *args: Any) -> Any:
        await self._ready
        return await self._ask(method, *args)

    async def _ask(self, method: str, *args: Any) -> Any:
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
        for _ in range(WINDOW):
            self._do(self._receive())

    async def _measure(self) -> None:
        await self._ask("echo")
        calls, clocks = [], []
        for _ in range(ECHOES):
            asked, begun = time.time(), time.perf_counter()
            there = await self._ask("echo")
            calls.append(time.perf_counter() - begun)
            clocks.append((calls[-1], there - asked - calls[-1] / 2))
        begun = time.perf_counter()
        await self._ask("echo", bytes(SAMPLE))
        self.link = link_of(calls, SAMPLE, time.perf_counter() - begun)
        self.clock = min(clocks)[1]

    async def _receive(self) -> None:
        while not self.lost:
            for events in self._arrived.accept(*await self._ask("give")):
                for event in events:
                    self._hand_on(event)

    def _hand_on(self, event: Event) -> None:
        if event.child in self._children:
            on_event, end = self._children[event.child]
            if event.kind != "ended":
                on_event(event)
            elif not end.done():
                end.set_result(event.value)

    def _do(self, work: Coroutine[Any, Any, Any]) -> None:
        async def guarded() -> None:
            try:
                await work
            except WorkerDied:
                pass
            except Exception as error:  # the children's streams have a gap: they are useless now
                self.lose(f"the way to its node has failed: {type(error).__name__}: {error}")

        task = asyncio.ensure_future(guarded())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def lose(self, reason: str) -> None:
        """Its children end at once for the engine."""
        if self.lost:
            return
        self.lost = reason
        self._waiting.clear()
        for _, end in self._children.values():
            if not end.done():
                end.set_result(Ended(None, reason))
        self._host.kill()


HELD = 4
"""State files in Ray's object store for further nodes."""


class NodeWorkers:
    """The bridge without Ray. All methods belong to its event loop.

    Ray's object store takes a state file once, each node pulls it once; both ends verify its checksum.
    """

    def __init__(self, host: Callable[[str], Host], put: Callable[[bytes], Any]) -> None:
        self._host = host
        self._put = put
        self._links: dict[str, NodeLink] = {}
        self._of: dict[int, NodeLink] = {}
        self._held: OrderedDict[str, asyncio.Future[Any]] = OrderedDict()

    async def resolve(self, node: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """See ``NodeHost.resolve``. Raises ``WorkerDied``, too."""
        answer: dict[str, Any] = await self.link(node).call("resolve", kwargs)
        return answer

    async def start(self, node: str, child: int, begin: Begin, stream_to: Callable[[Event], None]) -> Ended:
        link = self._of[child] = self.link(node)
        try:
            return await link.child(child, begin, stream_to)
        finally:
            del self._of[child]

    async def send(self, child: int, order: Order) -> None:
        if child in self._of:
            self._of[child].send(child, order)

    async def bring(self, node: str, path: str) -> str:
        """Returns the path there. Raises ``AdapterError`` if a disk refuses, and ``WorkerDied``."""
        link = self.link(node)
        digest = await asyncio.to_thread(_checksum, path)
        if there := await link.call("here", digest):
            return str(there)
        while True:
            reused = digest in self._held
            try:
                return str(await link.call("pull", digest, [await self._reference(digest, path)]))
            except Exception as error:
                self._held.pop(digest, None)
                if isinstance(error, MarlaasError) or not reused:
                    raise  # else its bytes may be lost: they are put again

    async def _reference(self, digest: str, path: str) -> Any:
        if digest not in self._held:
            self._held[digest] = asyncio.ensure_future(asyncio.to_thread(lambda: self._put(_read(path))))
        self._held.move_to_end(digest)
        while len(self._held) > HELD:
            self._held.popitem(last=False)
        return await asyncio.shield(self._held[digest])

    async def collect(self, node: str, there: str, path: str, sync: bool, new: bool) -> None:
        """Copied completely or not at all.

        With ``sync`` it survives a power cut; ``new``: version 0. Raises as ``bring``.
        """
        digest, data = await self.link(node).call("adopt", there)
        if checksum_of(data) != digest:
            raise AdapterDamaged("is not what was sent: its checksum differs.", where=path)
        await asyncio.to_thread(put_state, Path(path), data, sync, new)

    async def folder(self, node: str) -> str:
        return str(await self.link(node).call("folder"))

    def link(self, node: str) -> NodeLink:
        link = self._links.get(node)
        if link is None or link.lost:
            link = self._links[node] = NodeLink(self._host(node))
        return link


def _read(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise AdapterUnreachable(f"the state file cannot be read: {error.strerror}.", where=path) from error


def _checksum(path: str) -> str:
    try:
        return _checksum_of_file(path, os.stat(path).st_mtime_ns)
    except OSError as error:
        raise AdapterUnreachable(f"the state file cannot be read: {error.strerror}.", where=path) from error


@functools.lru_cache(maxsize=256)
def _checksum_of_file(path: str, changed: int) -> str:
    return checksum_of(_read(path))


# Ray ends its driver with the head, so the driver is not the engine.

RECONNECT = "10"
"""Seconds without the head until Ray ends this driver; its default is 60."""
ANSWER = 60.0


class Bridge(NodeWorkers):
    """A worker class, ended with the engine."""

    def __init__(self, address: str, versions: Versions, model: Folder) -> None:
        """``address``: ``HOST:PORT``, or ``auto`` for this machine's Ray. Raises ``ClusterUnreachable``."""
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", RECONNECT)
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
        import ray

        try:
            ray.init(address=address, namespace="marlaas", log_to_driver=False, configure_logging=False)
        except Exception as error:
            raise unreached(address, reason_in(_all_said(error))) from error
        super().__init__(RayHost, ray.put)
        self._ray = ray
        self._here: str = ray.get_runtime_context().get_node_id()
        self._versions = versions
        self._model = model

    async def nodes(self, cards: Mapping[str, frozenset[str]], fresh: bool = False) -> tuple[Node, ...]:
        """Not the engine's machine; ``cards``: its workers'.

        Unless ``fresh``, up to half a minute old.
        """
        seen = await asyncio.to_thread(self._ray.nodes)
        alive = {each["NodeName"] for each in seen if each["Alive"]}
        shown = [each for each in seen if each["Alive"] or each["NodeName"] not in alive]
        return tuple(await asyncio.gather(*(self._node(each, cards, fresh) for each in shown)))

    async def _node(self, seen: Mapping[str, Any], cards: Mapping[str, frozenset[str]], fresh: bool) -> Node:
        node, name, address = seen["NodeID"], seen["NodeName"], seen["NodeManagerAddress"]
        if not seen["Alive"]:
            return Node(node, name, address, alive=False)
        if node == self._here:
            return Node(node, name, address, here=True)
        link = self.link(node)
        try:
            async with asyncio.timeout(ANSWER):
                facts: NodeFacts = await link.call("describe", self._model, cards.get(node, frozenset()), fresh)
        except TimeoutError:
            return Node(node, name, address, refused="It does not answer.")
        except WorkerDied:
            return Node(node, name, address, refused="Its node host has ended, or the network to it is down.")
        except Exception as error:
            return Node(node, name, address, refused=f"It could not be looked at: {type(error).__name__}.")
        refused = trouble_with(facts, self._versions)
        return Node(node, name, address, facts=facts, refused=refused, link=link.link, clock=link.clock)


def _all_said(error: BaseException | None) -> str:
    return "" if error is None else f"{error}\n{_all_said(error.__cause__)}"


class RayHost:
    """An actor of Ray, pinned to its node. Ray restarts nothing."""

    def __init__(self, node: str) -> None:
        import ray  # after the variables that ``Bridge`` sets
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray, self._node = ray, node
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": place}
        self._actor = ray.remote(NodeHost).options(**options).remote()

    async def call(self, method: str, *args: Any) -> Any:
        errors = self._ray.exceptions
        try:
            return await getattr(self._actor, method).remote(*args)
        except errors.RayTaskError as error:
            if isinstance(error.cause, MarlaasError):
                raise error.cause from None
            raise
        except errors.ActorUnschedulableError:
            raise HostLost(f"node {self._node[:8]} is not in the cluster") from None
        except errors.RayActorError as error:
            how = "is not reached" if isinstance(error, errors.ActorUnavailableError) else "is gone"
            raise HostLost(f"the node host on node {self._node[:8]} {how}") from None

    def kill(self) -> None:
        self._ray.kill(self._actor, no_restart=True)
