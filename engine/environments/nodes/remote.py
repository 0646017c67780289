"""The engine's end of plugins' processes on one node.

A lost node ends them; they are not to blame.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit
from weakref import WeakSet

from ...errors import CallFailed, EnvironmentFailure, MarlaasError, WorkerDied
from ...home.settings import EnvironmentSettings
from ...racing import until_first
from ..files.source import SourceError, read_source
from ..process.child import Child
from ..process.launch import HERE, Folders, Launched, Launcher, Pulse, open_log
from .host import GATEWAY, MAIN, PIECE, PULSE, Began, Parcel, Sent, Streams, Used, Version


class Caller(Protocol):
    """The used methods of a worker's handle."""

    died: asyncio.Event

    def call(self, method: str, *args: Any, stream_to: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        """See ``WorkerHandle.call``."""

    def post(self, method: str, *args: Any) -> None:
        """Run a method without waiting."""


class RemoteNode(Launcher):
    """Starts plugins' processes on a node."""

    def __init__(self, node: str, name: str, cores: int, caller: Caller, call: float = 0.0) -> None:
        """``caller``: its ``ProcessHost``; ``call``: seconds of a round trip."""
        self.node = node
        self.name = name
        self.cores = cores
        self.seconds = call
        self.caller = caller
        self.running = 0
        self._refused: dict[str, str] = {}
        """By version, once it was prepared: why it cannot run there, empty if it can."""
        self._preparing: dict[str, asyncio.Task[str]] = {}
        self._numbers = itertools.count(1)
        self._lent: dict[tuple[str, str], asyncio.Task[Mapping[str, Any]]] = {}
        self._sending = asyncio.Lock()

    @property
    def alive(self) -> bool:
        return not self.caller.died.is_set()

    def ready(self, version: str) -> bool:
        return self.alive and self._refused.get(version) == ""

    def refused(self, version: str) -> str:
        return self._refused.get(version, "")

    def preparing(self, version: str) -> bool:
        return version in self._preparing

    def refuse(self, version: str, reason: str) -> None:
        self._refused[version] = reason.rstrip(".")

    async def prepare(self, path: Path, confined: bool, settings: EnvironmentSettings) -> str:
        """Once for all calls; again after files that could not be read. Returns why the version cannot run there.

        Raises ``WorkerDied``.
        """
        version = path.parent.name
        if version in self._refused:
            return self._refused[version]
        if version not in self._preparing:
            task = self._preparing[version] = asyncio.ensure_future(self._prepare(path, confined, settings))
            task.add_done_callback(lambda _: self._preparing.pop(version))
        return await asyncio.shield(self._preparing[version])

    async def _prepare(self, path: Path, confined: bool, settings: EnvironmentSettings) -> str:
        try:
            source = await asyncio.to_thread(read_source, path)
        except (OSError, SourceError) as error:
            return f"its files cannot be read: {error}"
        version = Version(source, confined, settings.allow, settings.wheels, settings.offline)
        try:
            refused: str = await self.caller.call("prepare", version)
        except CallFailed as error:
            refused = error.message
        self.refuse(path.parent.name, refused)
        return self._refused[path.parent.name]

    async def launch(self, path: Path, folders: Folders) -> Launched:
        version = path.parent.name
        if not self.ready(version):
            raise OSError(f"{self.name} is not ready for it")
        process = RemoteProcess(self, next(self._numbers), version, folders.log)
        await process.begin()
        return process

    async def lend(self, version: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """Sends files once. Raises ``OSError`` and ``WorkerDied``."""
        key = version, str(data)
        if key not in self._lent:
            self._lent[key] = asyncio.ensure_future(self._lend(version, data))
        return await asyncio.shield(self._lent[key])

    async def _lend(self, version: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        parcel = await asyncio.to_thread(Parcel.of, data)
        try:
            async with self._sending:
                for digest in await self.caller.call("rows_missing", [digest for _, digest in parcel.files]):
                    pieces = parcel.pieces(digest)
                    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
                        await self.caller.call("take_rows", digest, piece)
                folder: str = await self.caller.call("lend_rows", version, parcel.key, parcel.files)
        except CallFailed as error:
            raise OSError(error.message) from error
        return dict(data) | {"path": f"{folder}/{parcel.path}"}


class RemoteProcess(Launched):
    """A process on a node, and its way to the engine's gateway."""

    pid = 0

    def __init__(self, node: RemoteNode, number: int, version: str, log: Path) -> None:
        asking, self._answering = socket.socketpair()
        self.connection, self._theirs = socket.socketpair()
        self.pulse = Pulse(asking)
        self.log = log
        self.node = node.node
        self.door = self
        self._node = node
        self._number = number
        self._version = version
        self._used = Used(0.0, 0.0)
        self._began = asyncio.Event()
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._gateway = ("", 0)
        self._streams = Streams(partial(self._post, "send"), partial(self._post, "taken"))

    async def begin(self) -> None:
        self._node.running += 1
        running = self._node.caller.call("run", self._number, self._version, stream_to=self._receive)
        self._streams.open(MAIN, asyncio.open_connection(sock=self._theirs, limit=PIECE))
        self._streams.open(PULSE, asyncio.open_connection(sock=self._answering, limit=PIECE))
        running.add_done_callback(self._on_end)
        await until_first(self._began.wait(), asyncio.shield(self._over))
        if not self._began.is_set():
            raise OSError(self._over.result())

    async def open(self, url: str) -> str:
        where = urlsplit(url)
        self._gateway = (where.hostname or "", where.port or 0)
        try:
            name: str = await self._node.caller.call("open_door", self._number)
        except MarlaasError as error:
            raise EnvironmentFailure(error.message) from error
        return name

    async def rows(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        return await self._node.lend(self._version, data)

    def computed(self) -> float:
        return self._used.computed

    def delayed(self) -> float:
        return self._used.delayed

    def kill(self) -> None:
        self._post("kill")

    def interrupt(self) -> None:
        self._post("interrupt")

    async def wait(self) -> str:
        return await asyncio.shield(self._over)

    def _post(self, method: str, *args: Any) -> None:
        self._node.caller.post(method, self._number, *args)

    def _receive(self, event: Began | Sent | Used) -> None:
        match event:
            case Sent(stream, data):
                if stream >= GATEWAY and data and not self._streams.is_open(stream) and not self._over.done():
                    self._streams.open(stream, asyncio.open_connection(*self._gateway, limit=PIECE))
                self._streams.receive(stream, data)
            case Used():
                self._used = event
                if event.printed:
                    with contextlib.suppress(OSError):
                        file = open_log(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                        try:
                            os.write(file, event.printed)
                        finally:
                            os.close(file)
            case Began(pid):
                self.pid = pid
                self._began.set()

    def _on_end(self, running: asyncio.Future[Any]) -> None:
        error = CallFailed("it was cancelled.") if running.cancelled() else running.exception()
        if isinstance(error, WorkerDied):
            self.lost, sentence = True, f"its node {self._node.name} was lost"
        elif error is not None:
            sentence = (error.message if isinstance(error, MarlaasError) else str(error)).rstrip(".")
        else:
            sentence = str(running.result())
        self._node.running -= 1
        self._over.set_result(sentence)
        self._streams.end()
        self.pulse.close()


# A version's first process is on the engine's machine: it proves the version. Further ones go to the node with the
# fewest busy processes per core, once files and libraries are there.


class Reach:
    """The nodes of one engine, for plugins' processes."""

    def __init__(
        self,
        cores: int = 1,
        settings: EnvironmentSettings | None = None,
        tell: Callable[[str, str, str], None] = lambda plugin, version, sentence: None,
    ) -> None:
        """``tell`` gets the reason why a version stays off a node."""
        self._cores = cores
        self._settings = settings or EnvironmentSettings()
        self._tell = tell
        self._nodes: dict[str, RemoteNode] = {}
        self._children: WeakSet[Child] = WeakSet()
        self._starting: Counter[str] = Counter()
        self._preparing: set[asyncio.Task[None]] = set()

    def use(self, nodes: Sequence[RemoteNode]) -> None:
        self._nodes = {node.node: node for node in nodes}

    def stays(self, node: str) -> bool:
        return not node or node in self._nodes

    def elsewhere(self, path: Path, folders: Folders) -> int:
        """Cores of ready nodes; begins to prepare the rest."""
        version, cores = path.parent.name, 0
        for node in self._nodes.values():
            if node.ready(version):
                cores += node.cores
            elif node.alive and not node.refused(version) and not node.preparing(version):
                task = asyncio.ensure_future(self._brought(node, path, folders))
                self._preparing.add(task)
                task.add_done_callback(self._preparing.discard)
        return cores

    @contextmanager
    def place(self, path: Path) -> Iterator[Launcher]:
        """Choose the fewest working processes per core; of equal ones the nearest.

        The process counts there until its start.
        """
        version = path.parent.name
        rooms = [((self._busy("") + 1) / max(1, self._cores), 0.0, "")]
        for node in self._nodes.values():
            if node.ready(version):
                rooms.append(((self._busy(node.node) + 1) / max(1, node.cores), node.seconds, node.node))
        *_, chosen = min(rooms)
        self._starting[chosen] += 1
        try:
            yield self._nodes[chosen] if chosen else HERE
        finally:
            self._starting[chosen] -= 1

    def count(self, child: Child) -> None:
        self._children.add(child)

    def refuse(self, node: str, path: Path, plugin: str, reason: str) -> None:
        if node in self._nodes:
            self._nodes[node].refuse(path.parent.name, reason)
            self._say(self._nodes[node], path, plugin)

    def _busy(self, node: str) -> int:
        working = sum(child.node == node and child.dead is None and not child.idle for child in self._children)
        return working + self._starting[node]

    async def _brought(self, node: RemoteNode, path: Path, folders: Folders) -> None:
        confined = folders.runtime.confinement is not None
        try:
            await node.prepare(path, confined, self._settings)
        except MarlaasError:
            return
        self._say(node, path, folders.scratch.name)

    def _say(self, node: RemoteNode, path: Path, plugin: str) -> None:
        if reason := node.refused(path.parent.name):
            self._tell(plugin, path.parent.name, f"its processes stay off {node.name}: {reason}")
