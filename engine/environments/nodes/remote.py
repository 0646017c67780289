"""The engine's end of plugins' processes on one node: each looks like one that was started here.

Bytes go through the worker that runs them (``host``), whatever that is reached by. A node that is lost ends its
processes, and they are not to blame.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import socket
from collections.abc import Callable, Coroutine, Mapping
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import urlsplit

from ...errors import CallFailed, EnvironmentFailure, MarlaasError, WorkerDied
from ...home import EnvironmentSettings
from ...racing import until_first
from ..files.source import SourceError, read_source
from ..process.launch import Folders, Opening, PluginProcess, open_log, trim
from ..process.pulse import Pulse
from .host import PIECE
from .orders import Began, Passed, Prepared, ProcessEvent, Said, Used, Version
from .rows import Parcel


class Caller(Protocol):
    """The part of a worker's handle that is used here."""

    died: asyncio.Event

    def call(self, method: str, *args: Any, stream_to: Callable[[Any], None] | None = None) -> asyncio.Future[Any]:
        """Run a method of the worker; see ``WorkerHandle.call``."""

    def post(self, method: str, *args: Any) -> None:
        """Have one run whose value nobody needs."""


class RemoteNode:
    """Starts plugins' processes on a node. Implements ``PluginLauncher``."""

    def __init__(self, node: str, name: str, cores: int, caller: Caller, call: float = 0.0) -> None:
        """``caller``: the handle of its ``ProcessHost``; ``call``: seconds on the way there and back."""
        self.node = node
        self.name = name
        """What people call it."""
        self.cores = cores
        self.seconds = call
        self.caller = caller
        self._prepared: dict[str, Prepared] = {}
        self._preparing: dict[str, asyncio.Task[Prepared]] = {}
        self._numbers = itertools.count(1)
        self._lent: dict[tuple[str, str], asyncio.Task[Mapping[str, Any]]] = {}
        """Rows that tasks name, as they are there, or on their way; by version and what is named here."""
        self._sending = asyncio.Lock()
        self.running = 0
        """Processes there that have not ended."""

    @property
    def alive(self) -> bool:
        """Whether its worker is there."""
        return not self.caller.died.is_set()

    def ready(self, version: str) -> bool:
        """Whether processes of a version can be started there at once."""
        found = self._prepared.get(version)
        return self.alive and found is not None and not found.refused

    def refused(self, version: str) -> str:
        """Why a version cannot run there, as a clause; empty where it can, or that is not known yet."""
        found = self._prepared.get(version)
        return found.refused if found else ""

    def preparing(self, version: str) -> bool:
        """Whether a version is being made ready there."""
        return version in self._preparing

    def refuse(self, version: str, reason: str) -> None:
        """Start no processes of a version there any more."""
        self._prepared[version] = Prepared(reason.rstrip("."))

    async def prepare(self, path: Path, confined: bool, settings: EnvironmentSettings) -> Prepared:
        """Have the version that is imported from ``path`` here made ready there: once, however often it is asked for.

        Raises ``WorkerDied`` where the node is lost.
        """
        version = path.parent.name
        if (found := self._prepared.get(version)) is not None:
            return found
        if version not in self._preparing:
            task = asyncio.ensure_future(self._prepare(path, confined, settings))
            self._preparing[version] = task
            task.add_done_callback(lambda _: self._preparing.pop(version, None))
        return await asyncio.shield(self._preparing[version])

    async def _prepare(self, path: Path, confined: bool, settings: EnvironmentSettings) -> Prepared:
        try:
            source = await asyncio.to_thread(read_source, path)
        except (OSError, SourceError) as error:
            return Prepared(f"its files cannot be read: {error}")
        version = Version(source, confined, settings.allow, settings.wheels, settings.offline)
        try:
            found: Prepared = await self.caller.call("prepare", version)
        except CallFailed as error:
            found = Prepared(error.message.rstrip("."))
        self._prepared[path.parent.name] = found
        return found

    async def launch(self, path: Path, folders: Folders) -> PluginProcess:
        """See ``PluginLauncher``; the version must be ready."""
        version = path.parent.name
        if not self.ready(version):
            raise OSError(f"{self.name} is not ready for it")
        process = RemoteProcess(self, next(self._numbers), version, folders.log)
        await process.begin()
        return process

    async def lend(self, version: str, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """``data`` that a task names, with its files on the node, where they are sent once; the version is ready.

        Raises ``OSError`` where they cannot be there, and ``WorkerDied``.
        """
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
                        await self.caller.call("take_rows", digest, *piece)
                    await self.caller.call("rows_are_there", digest)
                folder: str = await self.caller.call("lend_rows", version, parcel.key, parcel.files)
        except CallFailed as error:
            raise OSError(error.message) from error
        return dict(data) | {"path": f"{folder}/{parcel.path}"}


class RemoteProcess:
    """A process on a node. Implements ``PluginProcess``."""

    def __init__(self, node: RemoteNode, number: int, version: str, log: Path) -> None:
        self.connection, self._theirs = socket.socketpair()
        asking, self._answering = socket.socketpair()
        self._answering.setblocking(False)
        self.pulse = Pulse(asking)
        self.lost = False
        self.pid = 0
        self._node = node
        self._number = number
        self._version = version
        self.log = log
        self._used = Used(0.0, 0.0)
        self._began = asyncio.Event()
        self._over: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self._received: asyncio.Queue[bytes] = asyncio.Queue()
        self._door: _RemoteDoor | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def node(self) -> str:
        """See the protocol."""
        return self._node.node

    @property
    def door(self) -> Opening | None:
        """See the protocol: it always needs one, for the gateway listens on the engine's machine."""
        self._door = self._door or _RemoteDoor(self._call, self._post)
        return self._door

    async def begin(self) -> None:
        """Start it. Raises ``OSError`` where that fails."""
        self._node.running += 1
        running = self._node.caller.call("run", self._number, self._version, stream_to=self._receive)
        for work in (self._up(), self._ask(), self._until_over(running)):
            self._do(work)
        await until_first(self._began.wait(), asyncio.shield(self._over))
        if not self._began.is_set():
            raise OSError(self._over.result())

    async def rows(self, data: Mapping[str, Any]) -> Mapping[str, Any]:
        """See the protocol."""
        return await self._node.lend(self._version, data)

    def computed(self) -> float:
        """See the protocol."""
        return self._used.computed

    def delayed(self) -> float:
        """See the protocol."""
        return self._used.delayed

    def kill(self) -> None:
        """See the protocol."""
        self._post("kill")

    def interrupt(self) -> None:
        """See the protocol."""
        self._post("interrupt")

    async def wait(self) -> str:
        """See the protocol."""
        return await asyncio.shield(self._over)

    def trim_log(self) -> None:
        """See the protocol."""
        trim(self.log)

    def _call(self, method: str, *args: Any) -> asyncio.Future[Any]:
        return self._node.caller.call(method, self._number, *args)

    def _post(self, method: str, *args: Any) -> None:
        self._node.caller.post(method, self._number, *args)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _receive(self, event: ProcessEvent) -> None:
        match event:
            case Said(data, pulse=False):
                self._received.put_nowait(data)
            case Said(data):
                with contextlib.suppress(OSError):
                    self._answering.send(data)
            case Used():
                self._used = event
                self._print(event.printed)
            case Passed() if self._door is not None:
                self._door.receive(event)
            case Began(pid):
                self.pid = pid
                self._began.set()

    def _print(self, printed: bytes) -> None:
        if printed:
            with contextlib.suppress(OSError):
                file = open_log(self.log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
                try:
                    os.write(file, printed)
                finally:
                    os.close(file)

    async def _until_over(self, running: asyncio.Future[Any]) -> None:
        try:
            sentence = str(await running)
        except WorkerDied:
            self.lost, sentence = True, f"its node {self._node.name} was lost"
        except MarlaasError as error:
            sentence = error.message.rstrip(".")
        except ValueError as error:
            sentence = str(error).rstrip(".")
        if self._door is not None:
            await self._door.close()
        self._node.running -= 1
        self._over.set_result(sentence)
        self._received.put_nowait(b"")
        self._answering.close()
        self.pulse.close()

    async def _up(self) -> None:
        """What it says, to whoever reads the socket; the node hears how much was taken."""
        reader, writer = await asyncio.open_connection(sock=self._theirs, limit=PIECE)
        self._do(self._down(reader))
        with contextlib.suppress(OSError):
            while data := await self._received.get():
                writer.write(data)
                await writer.drain()
                self._post("taken", len(data))
        writer.close()

    async def _down(self, reader: asyncio.StreamReader) -> None:
        """What it is told."""
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                self._post("send", data)
        self._post("send", b"")

    async def _ask(self) -> None:
        """What its pulse is asked."""
        loop = asyncio.get_running_loop()
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(self._answering, PIECE):
                self._post("ask", data)


class _RemoteDoor:
    """The way to the gateway for a process on a node. Implements ``Opening``."""

    def __init__(self, call: Callable[..., asyncio.Future[Any]], post: Callable[..., None]) -> None:
        self._call = call
        self._post = post
        self._address = ("", 0)
        self._writers: dict[int, asyncio.Future[asyncio.StreamWriter]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    async def open(self, url: str) -> str:
        """See ``Opening``."""
        where = urlsplit(url)
        self._address = (where.hostname or "", where.port or 0)
        try:
            name: str = await self._call("open_door")
        except MarlaasError as error:
            raise EnvironmentFailure(error.message) from error
        return name

    def receive(self, passed: Passed) -> None:
        """Bytes of a connection there; they are written in the order in which they came."""
        if passed.data is None:
            opened = asyncio.get_running_loop().create_future()
            self._writers[passed.number] = opened
            self._do(self._connect(passed.number, opened))
        elif (writer := self._writers.get(passed.number)) is not None:
            self._do(self._write(writer, passed.data))

    async def close(self) -> None:
        """End all connections."""
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _connect(self, number: int, opened: asyncio.Future[asyncio.StreamWriter]) -> None:
        try:
            reader, writer = await asyncio.open_connection(*self._address, limit=PIECE)
        except OSError:
            opened.cancel()
            self._post("passed", number, b"")
            return
        opened.set_result(writer)
        try:
            with contextlib.suppress(OSError):
                while data := await reader.read(PIECE):
                    self._post("passed", number, data)
            self._post("passed", number, b"")
        finally:
            self._writers.pop(number, None)
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _write(self, opened: asyncio.Future[asyncio.StreamWriter], data: bytes) -> None:
        with contextlib.suppress(OSError, asyncio.CancelledError):
            writer = await asyncio.shield(opened)
            if data:
                writer.write(data)
            else:
                writer.write_eof()
