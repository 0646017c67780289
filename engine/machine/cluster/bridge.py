"""Workers on other nodes: links to their hosts, state files, and Ray."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import os
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from ...adapters.statefile import put_state
from ...devices.machine import Link
from ...errors import AdapterDamaged, AdapterUnreachable, MarlaasError, WorkerDied
from ...racing import until_first
from .cluster import Begin, Ended, Event, Folder, NodeHost, Order, checksum_of
from .node import Node, NodeFacts, Versions, link_of, reason_in, trouble_with, unreached

# A host is lost once, with all its children.

CONNECT = 60.0
SAMPLE = 80_000
ECHOES = 5


class HostLost(Exception):
    """The text gives the reason."""


class Host(Protocol):
    """One node host, anywhere."""

    async def call(self, method: str, *args: Any) -> Any:
        """Raises ``HostLost``, the method's ``MarlaasError``, and any error on the way."""

    def stream(self, method: str, *args: Any) -> AsyncIterator[Any]:
        """The values of an async generator, in order. Raises as ``call``."""

    def kill(self) -> None:
        """End it and its children."""


class NodeLink:
    """A started node host. All methods belong to the bridge's event loop."""

    def __init__(self, host: Host) -> None:
        self.lost = ""
        self.link = Link()
        self.clock = 0.0
        self._host = host
        self._gone = asyncio.Event()
        self._orders: list[tuple[int, Order]] = []
        self._sending: asyncio.Task[None] | None = None
        self._ready = asyncio.ensure_future(self._connect())

    async def child(self, number: int, begin: Begin, on_event: Callable[[Event], None]) -> Ended:
        """``on_event`` gets events in order. Returns at the child's end, or the host's loss."""
        ends: list[Ended] = []

        async def relay() -> None:
            await self._ready
            async for event in self._host.stream("run", number, begin):
                if event.kind == "ended":
                    ends.append(event.value)
                else:
                    on_event(event)

        try:
            await until_first(relay(), self._gone.wait())
        except Exception as error:  # the child's stream has a gap: it is useless now
            self._lose_by(error)
        return ends[0] if ends else Ended(None, self.lost)

    def send(self, child: int, order: Order) -> None:
        """With all waiting orders, once the last call has been answered: Ray may reorder calls."""
        if not self.lost:
            self._orders.append((child, order))
            if self._sending is None or self._sending.done():
                self._sending = asyncio.ensure_future(self._send())

    async def _send(self) -> None:
        try:
            while self._orders:
                orders, self._orders = self._orders, []
                await self.call("take", orders)
        except Exception as error:
            self._lose_by(error)

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
            self.lose(f"the node host did not start within {CONNECT:.0f} s")
        except WorkerDied:
            pass
        except Exception as error:
            self.lose(f"the node host cannot start: {type(error).__name__}: {error}")

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

    def _lose_by(self, error: Exception) -> None:
        named = isinstance(error, HostLost | WorkerDied)
        self.lose(str(error) if named else f"the way to its node has failed: {type(error).__name__}: {error}")

    def lose(self, reason: str) -> None:
        """Its children end at once for the engine."""
        if not self.lost:
            self.lost = reason
            self._orders.clear()
            self._gone.set()
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
        self._held: dict[str, asyncio.Future[Any]] = {}

    async def resolve(self, node: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """See ``NodeHost.resolve``. Raises ``WorkerDied``, too."""
        return dict(await self.link(node).call("resolve", kwargs))

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
        try:
            return str(await link.call("pull", digest, [await self._reference(digest, path)]))
        except Exception:
            self._held.pop(digest, None)  # the store may have lost it: the next call puts it again
            raise

    async def _reference(self, digest: str, path: str) -> Any:
        if digest not in self._held:
            self._held[digest] = asyncio.ensure_future(asyncio.to_thread(lambda: self._put(_read(path))))
            while len(self._held) > HELD:
                del self._held[next(iter(self._held))]
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

    async def nodes(self, fresh: bool = False) -> tuple[Node, ...]:
        """Unless ``fresh``, up to half a minute old. Of the engine's own machine nothing but its name."""
        seen = await asyncio.to_thread(self._ray.nodes)
        return tuple(await asyncio.gather(*(self._node(each, fresh) for each in seen)))

    async def _node(self, seen: Mapping[str, Any], fresh: bool) -> Node:
        node, name, address = seen["NodeID"], seen["NodeName"], seen["NodeManagerAddress"]
        if not seen["Alive"]:
            return Node(node, name, address, alive=False)
        if node == self._here:
            return Node(node, name, address, here=True)
        link = self.link(node)
        try:
            async with asyncio.timeout(ANSWER):
                facts: NodeFacts = await link.call("describe", self._model, fresh)
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
        with self._translated():
            return await getattr(self._actor, method).remote(*args)

    async def stream(self, method: str, *args: Any) -> AsyncIterator[Any]:
        with self._translated():
            async for reference in getattr(self._actor, method).options(num_returns="streaming").remote(*args):
                yield await reference

    @contextlib.contextmanager
    def _translated(self) -> Iterator[None]:
        errors = self._ray.exceptions
        try:
            yield
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
