"""Workers on other nodes: file transfer and links."""

from __future__ import annotations

import asyncio
import os
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol, cast

from ...adapters.statefile import put_state
from ...devices.machine import Link
from ...errors import AdapterDamaged, AdapterError, AdapterUnreachable, MarlaasError, WorkerDied
from .node import Node, NodeFacts, Versions, link_of, trouble_with, unreached
from .node_host import PIECE, WINDOW, Begin, Close, Data, Ended, Event, InOrder, Kill, NodeHost, checksum_of, gathered

# State files are put once into Ray's object store and pulled once by each node; if it is full they go in pieces,
# slower. Both ends verify the checksum.

HELD = 4


class Shipping:
    """The files in progress."""

    def __init__(self, put: Callable[[bytes], Any]) -> None:
        self._put_bytes = put
        self._held: OrderedDict[str, Any] = OrderedDict()
        self._known: OrderedDict[Path, tuple[tuple[int, int], str]] = OrderedDict()
        self._putting: dict[str, asyncio.Future[Any]] = {}
        self.put = 0
        self.pieced = 0

    async def bring(self, link: NodeLink, path: Path) -> str:
        digest = await asyncio.to_thread(self._checksum, path)
        if found := await link.call("file", "here", digest):
            return str(found)
        try:
            return str(await link.call("pull", digest, [await self._reference(digest, path)]))
        except MarlaasError:
            raise
        except Exception:  # full, or lost with the node that held it
            self._held.pop(digest, None)
        self.pieced += 1
        data = await asyncio.to_thread(self._read, path)
        for begin in range(0, len(data), PIECE):
            await link.call("file", "take_part", digest, begin, data[begin : begin + PIECE])
        return str(await link.call("file", "parts_are_there", digest))

    async def collect(self, link: NodeLink, there: str, path: Path, sync: bool, new: bool) -> None:
        digest, size = await link.call("file", "adopt", there)
        try:
            reference, data = await link.fetch("read", digest)
            self._hold(digest, reference)
        except MarlaasError:
            raise
        except Exception:
            self.pieced += 1
            data = await self._in_pieces(link, digest, size)
        if checksum_of(data) != digest:
            raise AdapterDamaged("is not what was sent: its checksum differs.", where=str(path))
        await asyncio.to_thread(put_state, path, data, sync, new)
        self._remember(path, digest)

    async def _in_pieces(self, link: NodeLink, digest: str, size: int) -> bytes:
        begins = list(range(0, size, PIECE))
        parts: list[bytes] = []
        for first in range(0, len(begins), WINDOW):
            some = begins[first : first + WINDOW]
            parts += await asyncio.gather(*(link.call("read", digest, begin, PIECE) for begin in some))
        return b"".join(parts)

    async def _reference(self, digest: str, path: Path) -> Any:
        if digest in self._held:
            self._held.move_to_end(digest)
            return self._held[digest]
        if digest not in self._putting:
            self._putting[digest] = asyncio.ensure_future(self._put(digest, path))
        return await asyncio.shield(self._putting[digest])

    async def _put(self, digest: str, path: Path) -> Any:
        """Put a file, and hold it before anybody else can find it neither held nor on its way."""
        try:
            self.put += 1
            reference = await asyncio.to_thread(lambda: self._put_bytes(self._read(path)))
            self._hold(digest, reference)
            return reference
        finally:
            del self._putting[digest]

    def _hold(self, digest: str, reference: Any) -> None:
        self._held[digest] = reference
        self._held.move_to_end(digest)
        while len(self._held) > HELD:
            self._held.popitem(last=False)

    def _checksum(self, path: Path) -> str:
        try:
            status = path.stat()
        except OSError as error:
            raise self._unreadable(path, error) from error
        signature = (status.st_size, status.st_mtime_ns)
        if path in self._known and self._known[path][0] == signature:
            return self._known[path][1]
        digest = checksum_of(self._read(path))
        self._remember(path, digest)
        return digest

    def _remember(self, path: Path, digest: str) -> None:
        status = path.stat()
        self._known[path] = (status.st_size, status.st_mtime_ns), digest
        while len(self._known) > 1000:
            self._known.popitem(last=False)

    def _read(self, path: Path) -> bytes:
        try:
            return path.read_bytes()
        except OSError as error:
            raise self._unreadable(path, error) from error

    def _unreadable(self, path: Path, error: OSError) -> AdapterError:
        return AdapterUnreachable(f"the state file cannot be read: {error.strerror}.", where=str(path))


# A host is lost once, with a reason: its process or node has died, Ray cannot reach it, or a call to it has failed. For
# the engine all its children have then ended.

CONNECT = 60.0
SAMPLE = 80_000
ECHOES = 5
AT_ONCE = 16
"""Pieces in one call to a node host: Ray has 10 MB of arguments inside a call."""


class HostLost(Exception):
    """The node host is gone; the text gives the reason."""


class Host(Protocol):
    """One node host, anywhere."""

    async def call(self, method: str, *args: Any) -> tuple[Any, Any]:
        """Call a method of ``NodeHost``: a reference to the result, and the result.

        Raises ``HostLost``, the method's ``MarlaasError``, and any error on the way.
        """

    def kill(self) -> None:
        """End it, and with it its children."""


class NodeLink:
    """One node host that was just started. All methods belong to the bridge's event loop."""

    def __init__(self, host: Host) -> None:
        self.lost = ""
        self.link = Link()
        self.clock = 0.0
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
        """Start a child; ``on_event`` gets its events, in order. Returns when it has ended, or the host is lost."""
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
        """Send an event, with all waiting ones, once fewer than ``WINDOW`` batches are in progress."""
        if not self.lost:
            self._waiting.append(event)
            self._pump()

    async def call(self, method: str, *args: Any) -> Any:
        return (await self.fetch(method, *args))[1]

    async def fetch(self, method: str, *args: Any) -> tuple[Any, Any]:
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
            return
        if isinstance(event, Ended):
            if not end.done():
                end.set_result(event)
        else:
            on_event(event)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
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
        """Give the host up: its children are ended, for the engine at once."""
        if self.lost:
            return
        self.lost = reason
        self._waiting.clear()
        for child, (_, end) in list(self._children.items()):
            if not end.done():
                end.set_result(Ended(child, None, reason))
        self._host.kill()


class NodeWorkers:
    """Workers on nodes, and their state files: the bridge without Ray. All methods belong to its event loop."""

    def __init__(self, host: Callable[[str], Host], put: Callable[[bytes], Any]) -> None:
        self._host = host
        self._links: dict[str, NodeLink] = {}
        self._of: dict[int, NodeLink] = {}
        self._shipping = Shipping(put)

    async def resolve(self, node: str, kwargs: dict[str, Any]) -> dict[str, Any]:
        """A worker's arguments with the folders of a node; see ``NodeHost.resolve``. Raises ``WorkerDied``, too."""
        answer: dict[str, Any] = await self.link(node).call("resolve", kwargs)
        return answer

    async def start(self, node: str, begin: Begin, stream_to: Callable[[Event], None]) -> Ended:
        link = self._of[begin.child] = self.link(node)
        try:
            return await link.child(begin, stream_to)
        finally:
            self._of.pop(begin.child, None)

    async def tell(self, event: Data | Close | Kill) -> None:
        if event.child in self._of:
            self._of[event.child].tell(event)

    async def bring(self, node: str, path: str) -> str:
        """Copy the state file at ``path`` of this machine to a node; returns its path there.

        Raises ``AdapterError`` if it cannot be read here or kept there, and ``WorkerDied`` if the node is lost.
        """
        return await self._shipping.bring(self.link(node), Path(path))

    async def collect(self, node: str, there: str, path: str, sync: bool, new: bool) -> None:
        """Copy the state file at ``there`` of a node to ``path`` on this machine, completely or not at all.

        With ``sync`` it survives a power cut; ``new``: it is version 0. Raises as ``bring`` does.
        """
        await self._shipping.collect(self.link(node), there, Path(path), sync, new)

    async def folder(self, node: str) -> str:
        found: str = await self.link(node).call("folder")
        return found

    def link(self, node: str) -> NodeLink:
        link = self._links.get(node)
        if link is None or link.lost:
            link = self._links[node] = NodeLink(self._host(node))
        return link


# Ray ends its driver's process when the head dies, so the driver is not the engine. When the bridge ends, Ray ends the
# node hosts and their children.

RECONNECT = "10"
"""Seconds until Ray ends this driver if the head does not answer; Ray's default is 60."""
ANSWER = 60.0


class Bridge(NodeWorkers):
    """A worker class (``engine/machine/workers``): started by the engine, and ended with it."""

    def __init__(self, address: str, versions: Versions) -> None:
        """Connect to the Ray at ``address``: ``HOST:PORT``, or ``auto`` for that of this machine.

        ``versions`` are the engine's. Raises ``ClusterUnreachable``.
        """
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", RECONNECT)
        os.environ.setdefault("RAY_COLOR_PREFIX", "0")
        import ray

        try:
            ray.init(address=address, namespace="marlaas", log_to_driver=False, configure_logging=False)
        except Exception as error:
            raise unreached(address, _all_said(error)) from error
        super().__init__(RayHost, ray.put)
        self._ray = ray
        self._here: str = ray.get_runtime_context().get_node_id()
        self._versions = versions

    async def nodes(self, cards: Mapping[str, frozenset[str]], fresh: bool = False) -> tuple[Node, ...]:
        """All nodes: what they have, and why some are not used. ``cards`` are those of the engine's workers.

        The engine looks at its own machine by itself. Unless ``fresh``, a look may be half a minute old.
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
                facts: NodeFacts = await link.call("describe", cards.get(node, frozenset()), fresh)
        except TimeoutError:
            return Node(node, name, address, refused="It does not answer.")
        except WorkerDied:
            return Node(node, name, address, refused="Its node host has ended, or the network to it is down.")
        except Exception as error:
            return Node(node, name, address, refused=f"It could not be looked at: {type(error).__name__}.")
        return Node(
            *(node, name, address),
            versions=facts.versions,
            machine=facts.usable.machine,
            software=facts.software,
            free_bytes=facts.free_bytes,
            refused=trouble_with(facts, self._versions),
            left_out=facts.usable.reasons,
            base=facts.base,
            link=link.link,
            clock=link.clock,
        )


def _all_said(error: BaseException | None) -> str:
    return "" if error is None else f"{error}\n{_all_said(error.__cause__)}"


class RayHost:
    """Implements ``Host``: an actor of Ray, pinned to its node. Ray restarts nothing: the engine decides."""

    def __init__(self, node: str) -> None:
        import ray  # after the variables that ``Bridge`` sets
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        self._ray, self._node = ray, node
        place = NodeAffinitySchedulingStrategy(node, soft=False)
        options = {"num_cpus": 0, "max_restarts": 0, "max_task_retries": 0, "scheduling_strategy": place}
        self._actor = ray.remote(NodeHost).options(**options).remote()

    async def call(self, method: str, *args: Any) -> tuple[Any, Any]:
        errors = self._ray.exceptions
        reference = getattr(self._actor, method).remote(*args)
        try:
            return reference, await reference
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
