"""The engine's host on another node: its files, paths and children, and the streams to them."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import itertools
import os
import shutil
import socket
import time
from collections import deque
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from inspect import isawaitable
from pathlib import Path
from typing import Any, Literal, TypeAlias

import psutil

from ...adapters.statefile import put_state
from ...devices.usable import Ours
from ...errors import AdapterDamaged, AdapterError, BaseModelError, MarlaasError
from ...home.paths import Home, find_home
from ...home.settings import load_settings
from ...models.find import BaseModel, load_base
from ..workers.child import NOTHING, Template, kill, last_line, run_host
from ..workers.handle import WorkerHandle
from .node import NodeFacts, look_here

# Streams to a child on another node, by way of Ray.

# Several numbered batches of events are in progress at the same time, so that a long link costs its delay once. Ray may
# reorder them. A piece is small enough that Ray sends it inside the call.

PIECE = 90_000
"""Bytes of one argument or result of a call; from 100 kB on Ray puts it into an object store."""
WINDOW = 8
OVERHEAD = 200


@dataclass(frozen=True)
class Begin:
    """Start a child with its program, cores and variables."""

    child: int
    name: str
    cores: tuple[int, ...] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    nice: int = 0


@dataclass(frozen=True)
class Data:
    """Bytes of the child's stream, in either direction."""

    child: int
    data: bytes


@dataclass(frozen=True)
class Close:
    """Close the child's stream, on which it ends."""

    child: int


@dataclass(frozen=True)
class Kill:
    """End the child at once."""

    child: int


@dataclass(frozen=True)
class Born:
    """The child's process is there."""

    child: int
    pid: int


@dataclass(frozen=True)
class Printed:
    """What the child has written to its standard output and error."""

    child: int
    data: bytes


@dataclass(frozen=True)
class Ended:
    """The child has ended; it sends nothing more."""

    child: int
    status: int | None
    """Its exit status, negative for a signal; None if unknown."""
    reason: str = ""


Event: TypeAlias = Begin | Data | Close | Kill | Born | Printed | Ended


def batch(waiting: deque[Event], limit: int = PIECE) -> tuple[Event, ...]:
    """Take the first events that fit into a piece, at least one if there is any; large data go in parts."""
    taken: list[Event] = []
    room = limit
    while waiting and room > 0:
        event = waiting.popleft()
        if isinstance(event, Data | Printed) and len(event.data) > room:
            waiting.appendleft(type(event)(event.child, event.data[room:]))
            event = type(event)(event.child, event.data[:room])
        room -= size(event)
        taken.append(event)
    return tuple(taken)


def size(event: Event) -> int:
    """Bytes of an event in a call, about."""
    return OVERHEAD + (len(event.data) if isinstance(event, Data | Printed) else 0)


def gathered(events: Sequence[Event]) -> list[tuple[Event, ...]]:
    """All events in batches of a piece each."""
    waiting = deque(events)
    batches = []
    while waiting:
        batches.append(batch(waiting))
    return batches


class InOrder:
    """Puts numbered batches into order, from 0."""

    def __init__(self) -> None:
        self._next = 0
        self._early: dict[int, tuple[Event, ...]] = {}

    def accept(self, number: int, events: tuple[Event, ...]) -> Iterator[Event]:
        if number >= self._next:
            self._early[number] = events
        due: list[Event] = []
        while self._next in self._early:
            due += self._early.pop(self._next)
            self._next += 1
        return iter(due)


# A child ends once: by its exit, the loss of its node host, the bridge's death, or an unanswered order to kill it.
# Later events are dropped.

SILENCE = 5.0


class RemoteChild:
    """Implements ``machine.workers.child.Child``; its log is on the engine's machine.

    All methods belong to the event loop of the bridge's handle.
    """

    def __init__(self, bridge: WorkerHandle, node: str, begin: Begin, log_path: Path) -> None:
        log_path.parent.mkdir(parents=True, exist_ok=True)
        self.node = node
        self.pid = 0
        self.returncode: int | None = None
        self.reader = asyncio.StreamReader()
        self._bridge = bridge
        self._number = begin.child
        self._log_path = log_path
        self._log_start = log_path.stat().st_size if log_path.exists() else 0
        self._reason = ""
        self._ended = asyncio.Event()
        self._silence: asyncio.TimerHandle | None = None
        self._running = bridge.call("start", node, begin, stream_to=self._receive)
        self._running.add_done_callback(self._end)

    def write(self, data: bytes) -> None:
        self._tell(Data(self._number, data))

    def close(self) -> None:
        self._tell(Close(self._number))

    def kill(self) -> None:
        self._tell(Kill(self._number))
        if not self._ended.is_set() and self._silence is None:
            self._silence = asyncio.get_running_loop().call_later(SILENCE, self._give_up)

    async def wait(self) -> None:
        await self._ended.wait()

    def last_words(self) -> str:
        return self._reason or last_line(self._log_path, self._log_start)

    def _tell(self, event: Data | Close | Kill) -> None:
        if not self._ended.is_set():
            self._bridge.post("tell", event, haste=True)

    def _receive(self, event: Event) -> None:
        if self._ended.is_set():
            return
        if isinstance(event, Data):
            self.reader.feed_data(event.data)
        elif isinstance(event, Born):
            self.pid = event.pid
        elif isinstance(event, Printed):
            with contextlib.suppress(OSError), open(self._log_path, "ab") as log:
                log.write(event.data)

    def _end(self, running: asyncio.Future[Any]) -> None:
        if running.cancelled():
            ended = Ended(self._number, None, "the way to it has ended")
        elif (error := running.exception()) is not None:
            ended = Ended(self._number, None, error.message if isinstance(error, MarlaasError) else str(error))
        else:
            ended = running.result()
        self._settle(ended)

    def _give_up(self) -> None:
        self._settle(Ended(self._number, None, "its node answers nothing"))

    def _settle(self, ended: Ended) -> None:
        if self._ended.is_set():
            return
        if self._silence is not None:
            self._silence.cancel()
        self.returncode, self._reason = ended.status, ended.reason
        self.reader.feed_eof()
        self._ended.set()


numbers = itertools.count(1)


class NodeLauncher:
    """Implements ``workers.Launcher`` for one node, over the bridge."""

    def __init__(
        self,
        bridge: WorkerHandle,
        node: str,
        named: Callable[[dict[str, Any]], dict[str, Any]] = lambda kwargs: kwargs,
    ) -> None:
        self._bridge = bridge
        self._node = node
        self._named = named

    async def start(
        self,
        name: str,
        factory: str,
        kwargs: dict[str, Any],
        cores: tuple[int, ...] = (),
        *,
        log_path: Path,
        environment: Mapping[str, str] = NOTHING,
        nice: int = 0,
        template: Template | None = None,
    ) -> WorkerHandle:
        """Raises ``BaseModelError``, too, if the node does not have the base."""
        there = await self._bridge.call("resolve", self._node, self._named(kwargs))
        begin = Begin(next(numbers), name, cores, dict(environment), nice)
        child = RemoteChild(self._bridge, self._node, begin, log_path)
        return await WorkerHandle.begin(child, name, factory, there, log_path)


# The engine's host on another node: its files, paths and children.


@dataclass(frozen=True)
class BaseFolder:
    """The base model with a fingerprint."""

    fingerprint: str
    path: str
    file: str = ""


@dataclass(frozen=True)
class OwnFolder:
    """A folder of the node's own home."""

    name: Literal["base", "scratch"]


def named(kwargs: Mapping[str, Any], base: BaseModel, home: Home) -> dict[str, Any]:
    """A worker's arguments with this home's folders replaced by their purposes."""
    folders = {
        str(base.path): BaseFolder(base.fingerprint, str(base.path)),
        str(home.base): OwnFolder("base"),
        str(home.scratch): OwnFolder("scratch"),
    }

    if base.gguf:
        folders[str(base.gguf)] = BaseFolder(base.fingerprint, str(base.path), base.gguf.name)

    def other(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: other(each) for key, each in value.items()}
        return folders.get(value, value) if isinstance(value, str) else value

    return {key: other(value) for key, value in kwargs.items()}


def resolve(kwargs: Mapping[str, Any], home: Home) -> dict[str, Any]:
    """The arguments with this node's folders; missing ones are made.

    Raises ``BaseModelError`` if the base is not here.
    """

    def here(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: here(each) for key, each in value.items()}
        if isinstance(value, BaseFolder):
            return str(find_base(value, home) / value.file)
        if isinstance(value, OwnFolder):
            folder = {"base": home.base, "scratch": home.scratch}[value.name]
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            return str(folder)
        return value

    return {key: here(value) for key, value in kwargs.items()}


def find_base(wanted: BaseFolder, home: Home) -> Path:
    """The folder of a base on this node: that of its own settings, or the engine's path.

    Raises ``BaseModelError`` if neither has its fingerprint.
    """
    names = [wanted.path]
    with contextlib.suppress(MarlaasError):
        names.insert(0, load_settings(home).base)
    for name in names:
        try:
            found = load_base(name)
        except MarlaasError:
            continue
        if found.fingerprint == wanted.fingerprint:
            return found.path
    raise BaseModelError(
        f"The engine's base is not on this node: {Path(wanted.path).name}, fingerprint {wanted.fingerprint[:12]}.",
        "Copy the folder there, and name it as `base` in that machine's marlaas.toml.",
        where=wanted.path,
    )


KEPT = 64
"""Kept files. A sampler reads its version before it serves it; a missing file is pulled again."""
PREFIX = "states-"


class NodeFiles:
    """The files of one node host, in its own folder below ``scratch``, removed when the next one starts."""

    def __init__(self, scratch: Path) -> None:
        scratch.mkdir(mode=0o700, parents=True, exist_ok=True)
        for left in scratch.glob(f"{PREFIX}*"):
            if not psutil.pid_exists(int(left.name.removeprefix(PREFIX))):
                shutil.rmtree(left, ignore_errors=True)
        self.folder = scratch / f"{PREFIX}{os.getpid()}"
        self.folder.mkdir(mode=0o700, exist_ok=True)
        self._coming: dict[str, asyncio.Task[Path]] = {}
        self._parts: dict[str, dict[int, bytes]] = {}

    def path(self, digest: str) -> Path:
        return self.folder / f"{digest}.safetensors"

    def here(self, digest: str) -> str:
        path = self.path(digest)
        with contextlib.suppress(OSError):
            os.utime(path)  # it is in use
            return str(path)
        return ""

    async def pull(self, digest: str, get: Callable[[], Awaitable[bytes]]) -> str:
        """Have a file here; ``get`` fetches a missing one, once for all callers.

        Raises ``AdapterDamaged`` if other bytes come, and ``AdapterError`` if the disk refuses.
        """
        if found := self.here(digest):
            return found
        if digest not in self._coming:
            coming = self._coming[digest] = asyncio.ensure_future(self._pull(digest, get))
            coming.add_done_callback(lambda _: self._coming.pop(digest, None))
        return str(await asyncio.shield(self._coming[digest]))

    async def _pull(self, digest: str, get: Callable[[], Awaitable[bytes]]) -> Path:
        data = await get()
        return await asyncio.to_thread(self._keep, digest, data)

    def _keep(self, digest: str, data: bytes) -> Path:
        path = self.path(digest)
        if checksum_of(data) != digest:
            raise AdapterDamaged("is not what was sent: its checksum differs.", where=path.name)
        put_state(path, data, sync=False)
        self._forget_old()
        return path

    def take_part(self, digest: str, begin: int, part: bytes) -> None:
        self._parts.setdefault(digest, {})[begin] = part

    async def parts_are_there(self, digest: str) -> str:
        parts = self._parts.pop(digest, {})
        data = b"".join(parts[begin] for begin in sorted(parts))
        return str(await asyncio.to_thread(self._keep, digest, data))

    async def adopt(self, path: str) -> tuple[str, int]:
        """Keep a worker's file under its checksum; returns that, and its size in bytes.

        Raises ``AdapterError`` if it cannot be read.
        """
        return await asyncio.to_thread(self._adopt, Path(path))

    def _adopt(self, path: Path) -> tuple[str, int]:
        try:
            data = path.read_bytes()
            digest = checksum_of(data)
            os.replace(path, self.path(digest))
            self._forget_old()
        except OSError as error:
            raise AdapterError(f"cannot be read on its node: {error.strerror}.", where=str(path)) from error
        return digest, len(data)

    def read(self, digest: str, begin: int = 0, count: int = -1) -> bytes:
        try:
            with open(self.path(digest), "rb") as file:
                file.seek(begin)
                return file.read(count)
        except OSError as error:
            raise AdapterError(f"is not on its node any more: {error.strerror}.", where=f"{digest[:12]}") from error

    def _forget_old(self) -> None:
        files = sorted(self.folder.glob("*.safetensors"), key=lambda path: path.stat().st_mtime_ns, reverse=True)
        for path in files[KEPT:]:
            path.unlink(missing_ok=True)


def checksum_of(data: bytes | memoryview) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    return hashlib.sha256(data).hexdigest()


# One Ray actor on each node starts the same child programs as a local engine, and relays them; the kernel ends them
# with it. It decides and restarts nothing. Only this module and ``bridge`` may import ray.

CHUNK = 2**16
MUCH = 64 * 2**20
"""Bytes waiting for the bridge until children are not read any more: they then wait to write."""
SEEN = 30.0
PATIENCE = 1.0
"""Seconds for a child's last output after its end; a process that it left behind may hold its output open."""
OF_RAY = ("RAY_", "SPT_NOENV", "PYTHONBREAKPOINT", "OMP_NUM_THREADS")


class NodeHost:
    """Runs on a node as an async actor; all methods belong to its event loop."""

    def __init__(self, home: Home | None = None) -> None:
        self._home = home or find_home()
        self.files = NodeFiles(self._home.scratch)
        self._children: dict[int, _Relayed] = {}
        self._arrived = InOrder()
        self._waiting: deque[Event] = deque()
        self._numbers = 0
        self._weight = 0
        self._some = asyncio.Event()
        self._room = asyncio.Event()
        self._room.set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._facts: NodeFacts | None = None
        self._looked = 0.0

    async def echo(self, data: bytes = b"") -> tuple[int, float]:
        """Answer at once: the number of bytes, and the time here, in seconds since 1970."""
        return len(data), time.time()

    async def describe(self, cards: frozenset[str] = frozenset(), fresh: bool = True) -> NodeFacts:
        """What this node has; resources of the children here, including ``cards``, count as free.

        Unless ``fresh``, the result may be ``SEEN`` seconds old. Devices of unknown speed are measured if no child
        computes.
        """
        if fresh or self._facts is None or time.monotonic() - self._looked > SEEN:
            pids = frozenset(child.pid for child in self._children.values() if child.pid)
            measure = not self._children
            self._facts = await asyncio.to_thread(look_here, self._home, Ours(pids, cards), measure=measure)
            self._looked = time.monotonic()
        return self._facts

    async def resolve(self, kwargs: dict[str, Any]) -> dict[str, Any]:
        return await asyncio.to_thread(resolve, kwargs, self._home)

    async def folder(self) -> str:
        return str(self.files.folder)

    async def file(self, method: str, *args: Any) -> Any:
        """Call a method of ``NodeFiles``."""
        result = getattr(self.files, method)(*args)
        return await result if isawaitable(result) else result

    async def pull(self, digest: str, holder: list[Any]) -> str:
        """Have a state file here, perhaps from Ray's object store; returns its path. Raises as ``NodeFiles.pull``.

        ``holder`` is a list with Ray's reference, so that this call begins before the bytes are here.
        """

        async def get() -> bytes:
            data: bytes = await holder[0]
            return data

        return await self.files.pull(digest, get)

    async def read(self, digest: str, begin: int = 0, count: int = -1) -> bytes:
        return await asyncio.to_thread(self.files.read, digest, begin, count)

    async def take(self, number: int, *batches: tuple[Event, ...]) -> None:
        for event in self._arrived.accept(number, tuple(event for part in batches for event in part)):
            self._carry_out(event)

    async def give(self) -> tuple[int, tuple[Event, ...]]:
        while not self._waiting:
            self._some.clear()
            await self._some.wait()
        events = batch(self._waiting)
        number, self._numbers = self._numbers, self._numbers + 1
        self._weight -= sum(size(event) for event in events)
        if self._weight < MUCH:
            self._room.set()
        return number, events

    def tell(self, event: Event) -> None:
        self._waiting.append(event)
        self._weight += size(event)
        if self._weight >= MUCH:
            self._room.clear()
        self._some.set()

    async def room(self) -> None:
        await self._room.wait()

    def _carry_out(self, event: Event) -> None:
        if isinstance(event, Begin):
            child = self._children[event.child] = _Relayed(self, event)
            self._do(self._see_off(child))
        elif isinstance(event, Data | Close | Kill) and event.child in self._children:
            self._children[event.child].obey(event)

    async def _see_off(self, child: _Relayed) -> None:
        try:
            await child.run()
        finally:
            self._children.pop(child.number, None)

    def _do(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.ensure_future(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


class _Relayed:
    def __init__(self, host: NodeHost, begin: Begin) -> None:
        self.number = begin.child
        self.pid = 0
        self._host = host
        self._begin = begin
        self._early: list[Data | Close | Kill] = []
        self._process: asyncio.subprocess.Process | None = None
        self._writer: asyncio.StreamWriter | None = None

    def obey(self, event: Data | Close | Kill) -> None:
        if self._process is None or self._writer is None:
            self._early.append(event)
        elif isinstance(event, Data):
            self._writer.write(event.data)
        elif isinstance(event, Close):
            self._writer.close()
        else:
            kill(self._process)

    async def run(self) -> None:
        try:
            status: int | None = await self._run()
            reason = ""
        except OSError as error:
            status, reason = None, f"it could not be started there: {error}"
        self._host.tell(Ended(self.number, status, reason))

    async def _run(self) -> int:
        ours, theirs = socket.socketpair()
        output, into = os.pipe()
        begin = self._begin
        with theirs, contextlib.ExitStack() as failing:
            failing.callback(ours.close)
            failing.callback(os.close, output)
            try:
                environment = child_environment(os.environ, begin.environment)
                process = await run_host(begin.name, theirs, begin.cores, begin.nice, environment, into)
            finally:
                os.close(into)
            failing.pop_all()
        self.pid = process.pid
        self._host.tell(Born(self.number, process.pid))
        reader, writer = await asyncio.open_connection(sock=ours)
        self._process, self._writer = process, writer
        printing = asyncio.ensure_future(self._print(output))
        speaking = asyncio.ensure_future(self._relay(reader))
        early, self._early = self._early, []
        for event in early:
            self.obey(event)
        status = await process.wait()
        await asyncio.wait((printing, speaking), timeout=PATIENCE)
        for left in (printing, speaking):
            left.cancel()
        writer.close()
        return status

    async def _relay(self, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(ConnectionError):
            while data := await reader.read(CHUNK):
                self._host.tell(Data(self.number, data))
                await self._host.room()

    async def _print(self, output: int) -> None:
        loop, reader = asyncio.get_running_loop(), asyncio.StreamReader()
        with os.fdopen(output, "rb") as file:
            transport, _ = await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), file)
            try:
                while data := await reader.read(CHUNK):
                    self._host.tell(Printed(self.number, data))
                    await self._host.room()
            finally:
                transport.close()


def child_environment(own: Mapping[str, str], wanted: Mapping[str, str]) -> dict[str, str]:
    """A child's variables: the node's, without Ray's own, and the requested ones."""
    return {name: value for name, value in own.items() if not name.startswith(OF_RAY)} | dict(wanted)
