"""Runs on a node: starts plugins' processes, and passes on their bytes; they end with it.

The engine judges episodes, limits and silence. Files come once, by digest.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import math
import os
import shutil
import socket
from collections.abc import Callable, Coroutine, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import file_digest, sha256
from pathlib import Path
from typing import Any

from marlaas.plugins import data as rows_data
from marlaas.plugins.data import all_files, folder_of
from marlaas.plugins.programs.forwarder import Connection

from ...home.settings import EnvironmentSettings
from ..dependencies import Interpreters, Refused, Waiting
from ..files.source import Snapshots, Source
from ..process.launch import Door, Folders, Launched, launch

MOST = 2_000_000_000
"""Bytes, 16 s at 1 Gbit/s. Larger rows stay on the engine's machine."""
ROWS_PIECE = 1 << 20
KEPT = 64
"""Newest files of a node; those in use are linked elsewhere."""
PART = ".part"


@dataclass(frozen=True)
class Parcel:
    """A source's files, by names below its folder."""

    root: Path
    files: tuple[tuple[str, str], ...]
    path: str

    @classmethod
    def of(cls, data: Mapping[str, Any]) -> Parcel:
        """Raises ``OSError``, also if too large."""
        source = rows_data.Source.of(data)
        root, paths = folder_of(source), all_files(source)
        if sum(path.stat().st_size for path in paths) > MOST:
            raise OSError(f"they are larger than {MOST / 1e9:g} GB")
        files = tuple((str(path.relative_to(root)), _digest(path)) for path in paths)
        return cls(root, files, str(source.path.relative_to(root)))

    @property
    def key(self) -> str:
        return sha256(repr(self.files).encode()).hexdigest()[:16]

    def pieces(self, digest: str) -> Iterator[bytes]:
        """At least one piece."""
        name = next(name for name, other in self.files if other == digest)
        with open(self.root / name, "rb") as file:
            yield file.read(ROWS_PIECE)
            yield from iter(lambda: file.read(ROWS_PIECE), b"")


class RowsThere:
    """Files on a node. All methods block, and raise ``OSError``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def missing(self, digests: Iterable[str]) -> list[str]:
        missing = [digest for digest in dict.fromkeys(digests) if not (self._folder / digest).exists()]
        for digest in missing:
            (self._folder / f"{digest}{PART}").unlink(missing_ok=True)
        return missing

    def take(self, digest: str, piece: bytes) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        with open(self._folder / f"{digest}{PART}", "ab") as file:
            file.write(piece)

    def lay_out(self, files: Sequence[tuple[str, str]], folder: Path) -> None:
        for name, digest in files:
            part, path = self._folder / f"{digest}{PART}", folder / name
            if part.exists():
                if _digest(part) != digest:
                    part.unlink()
                    raise OSError("its bytes are others than were sent")
                part.replace(self._folder / digest)
            path.parent.mkdir(parents=True, exist_ok=True)
            try:
                os.link(self._folder / digest, path)
            except FileExistsError:
                continue
            except OSError:
                shutil.copy2(self._folder / digest, path)
        came = sorted(self._folder.iterdir(), key=lambda path: path.stat().st_mtime_ns)
        for path in came[:-KEPT]:
            path.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with open(path, "rb") as file:
        return file_digest(file, "sha256").hexdigest()


PIECE = 64 << 10
WINDOW = 1 << 20
"""Bytes of a process in transit until it waits to write, as it would here."""
LOOK = 0.5
HOSTED = "hosted"
MOST_PRINTED = 64 << 10
"""Bytes of a log in one report; the rest is dropped."""
MAIN, PULSE, GATEWAY = 0, 1, 2
"""A process's connection, its pulse, and the first connection to the gateway."""


class Streams:
    """One end of a process's numbered byte streams. An empty piece ends a direction."""

    def __init__(
        self, send: Callable[[int, bytes], None], taken: Callable[[int], None] = lambda _: None, room: float = math.inf
    ) -> None:
        """``taken``: told how many received bytes were passed on or dropped. ``room``: bytes to send until the other
        end has taken some, for all streams."""
        self._send = send
        self._taken = taken
        self._room = room
        self._has_room = asyncio.Event()
        self._received: dict[int, asyncio.Queue[bytes]] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def open(self, stream: int, connecting: Coroutine[Any, Any, Connection]) -> asyncio.Task[None]:
        self._received[stream] = asyncio.Queue()
        task = asyncio.ensure_future(self._pass_on(stream, connecting))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def is_open(self, stream: int) -> bool:
        return stream in self._received

    def receive(self, stream: int, data: bytes) -> None:
        if stream in self._received:
            self._received[stream].put_nowait(data)
        elif data:
            self._taken(len(data))

    def acknowledge(self, count: int) -> None:
        self._room += count
        self._has_room.set()

    async def _pass_on(self, stream: int, connecting: Coroutine[Any, Any, Connection]) -> None:
        received = self._received[stream]
        try:
            reader, writer = await connecting
        except OSError:  # the gateway has gone
            return self._send(stream, b"")
        ways = [asyncio.ensure_future(way) for way in (self._forward(received, writer), self._back(stream, reader))]
        until = asyncio.ALL_COMPLETED if stream >= GATEWAY else asyncio.FIRST_COMPLETED
        try:
            await asyncio.wait(ways, return_when=until)
        finally:
            for way in ways:
                way.cancel()
            writer.close()
            del self._received[stream]
            await asyncio.gather(*ways, return_exceptions=True)
            while not received.empty():
                self._taken(len(received.get_nowait()))

    async def _forward(self, received: asyncio.Queue[bytes], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await received.get():
                try:
                    writer.write(data)
                    await writer.drain()
                finally:
                    self._taken(len(data))
            writer.write_eof()

    async def _back(self, stream: int, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                self._send(stream, data)
                self._room -= len(data)
                while self._room <= 0:
                    self._has_room.clear()
                    await self._has_room.wait()
        self._send(stream, b"")

    def end(self) -> None:
        for received in self._received.values():
            received.put_nowait(b"")

    async def close(self) -> None:
        tasks = [*self._tasks]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True)
class Version:
    """Pickled between our own processes, as all below."""

    source: Source
    confined: bool
    allow: str
    """``never`` if the settings forbid libraries; else there was consent."""
    wheels: str
    offline: bool


@dataclass(frozen=True)
class Began:
    """A process runs."""

    pid: int


@dataclass(frozen=True)
class Sent:
    """Bytes of a stream."""

    stream: int
    data: bytes


@dataclass(frozen=True)
class Used:
    """Seconds used so far, and output since the last report."""

    computed: float
    delayed: float
    printed: bytes = b""


OnEvent = Callable[[Began | Sent | Used], None]


@dataclass(eq=False)
class _Running:
    launched: Launched
    streams: Streams
    door: Door | None = None


class ProcessHost:
    """Runs plugins' processes on a node. All paths are the node's."""

    def __init__(self, scratch: str, nice: int = 0) -> None:
        self._scratch = Path(scratch) / HOSTED
        self._nice = nice
        self._rows = RowsThere(self._scratch / "rows")
        shutil.rmtree(self._scratch / "lent", ignore_errors=True)  # of the engine before
        self._folders: dict[str, tuple[Path, Folders]] = {}
        self._running: dict[int, _Running] = {}
        self._printed: dict[Path, int] = {}
        self._numbers = itertools.count(GATEWAY)

    async def prepare(self, version: Version) -> str:
        """Returns why the version cannot run here, as a clause. Libraries may take minutes."""
        settings = EnvironmentSettings(
            allow="never" if version.allow == "never" else "always",
            wheels=version.wheels,
            offline=version.offline,
            sandbox=version.confined,
        )
        interpreters = Interpreters(self._scratch / "venvs", settings, self._nice)
        try:
            path = await asyncio.to_thread(Snapshots(self._scratch / "snapshots").write, version.source)
            while True:
                try:
                    runtime = await interpreters.of(version.source)
                    break
                except Waiting as waiting:
                    if waiting.state != "building":
                        return str(waiting)
                    await waiting.over()
        except Refused as error:
            return error.failure.message
        except OSError as error:
            return f"its files cannot be written there: {error.strerror}"
        folders = Folders.of(self._scratch, version.source.name)
        self._folders[version.source.version] = path, Folders(folders.scratch, folders.log, runtime)
        return ""

    async def rows_missing(self, digests: list[str]) -> list[str]:
        return await asyncio.to_thread(self._rows.missing, digests)

    async def take_rows(self, digest: str, piece: bytes) -> None:
        await asyncio.to_thread(self._rows.take, digest, piece)

    async def lend_rows(self, version: str, key: str, files: tuple[tuple[str, str], ...]) -> str:
        """Put files in a folder that a version's processes can read; returns it."""
        folder = self._folders[version][1].lent / key
        await asyncio.to_thread(self._rows.lay_out, files, folder)
        return str(folder)

    async def run(self, number: int, version: str, *, stream_to: OnEvent) -> str:
        launched = await launch(*self._folders[version])
        streams = Streams(lambda stream, data: stream_to(Sent(stream, data)), room=WINDOW)
        running = self._running[number] = _Running(launched, streams)
        stream_to(Began(launched.pid))
        report = asyncio.ensure_future(self._report(running, stream_to))
        try:
            streams.open(PULSE, asyncio.open_connection(sock=launched.pulse.connection, limit=PIECE))
            await streams.open(MAIN, asyncio.open_connection(sock=launched.connection, limit=PIECE))
            return await launched.wait()
        finally:
            launched.kill()
            report.cancel()
            await asyncio.gather(streams.close(), report, return_exceptions=True)
            stream_to(self._used(running))
            if running.door is not None:
                running.door.close()
            del self._running[number]

    async def send(self, number: int, stream: int, data: bytes) -> None:
        if running := self._running.get(number):
            running.streams.receive(stream, data)

    async def taken(self, number: int, count: int) -> None:
        if running := self._running.get(number):
            running.streams.acknowledge(count)

    async def kill(self, number: int) -> None:
        if running := self._running.get(number):
            running.launched.kill()

    async def interrupt(self, number: int) -> None:
        if running := self._running.get(number):
            running.launched.interrupt()

    async def open_door(self, number: int) -> str:
        """The socket to the engine's gateway. Raises ``EnvironmentFailure``."""
        running = self._running[number]

        async def connect() -> Connection:
            ours, theirs = socket.socketpair()
            running.streams.open(next(self._numbers), asyncio.open_connection(sock=theirs, limit=PIECE))
            return await asyncio.open_connection(sock=ours)

        if running.door is None:
            running.door = Door(running.launched.scratch, connect)
        return await running.door.open("http://gateway")

    async def _report(self, running: _Running, stream_to: OnEvent) -> None:
        while True:
            stream_to(self._used(running))
            running.launched.trim_log()
            await asyncio.sleep(LOOK)

    def _used(self, running: _Running) -> Used:
        launched = running.launched
        return Used(launched.computed(), launched.delayed(), self._prints(launched.log))

    def _prints(self, log: Path) -> bytes:
        with contextlib.suppress(OSError), open(os.open(log, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = self._printed.get(log, 0)
            self._printed[log] = size
            begin = 0 if size < begin else begin  # it may have been trimmed
            file.seek(max(begin, size - MOST_PRINTED))
            return file.read(MOST_PRINTED)
        return b""
