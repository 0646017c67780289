"""Runs on a node: starts plugins' processes there as the engine starts its own, and passes on what they say.

Everything that judges them, episodes, limits, silence, stays with the engine. They end with this process. Files come
once, by the digest of their content; libraries are installed here, after the consent that was given to the engine.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from pathlib import Path

from marlaas.plugins.programs.forwarder import Connection

from ...home import EnvironmentSettings
from ..dependencies.interpreters import Interpreters, Refused, Waiting
from ..files.source import Snapshots
from ..process.launch import Door, Folders, Launched, launch
from .orders import WINDOW, Began, Passed, Prepared, ProcessEvent, Said, Used, Version
from .rows import RowsThere

PIECE = 64 << 10
"""Bytes that are passed on at once."""
LOOK = 0.5
"""Seconds between two reports of what a process uses: half of the time between two questions whether it runs."""
HOSTED = "hosted"
"""The folder among a node's scratch files: nothing of an engine that the node's home has itself lies there."""
MOST_PRINTED = 64 << 10
"""Bytes of a log that are passed on with one report; what is printed faster than that is left out."""

OnEvent = Callable[[ProcessEvent], None]


@dataclass(eq=False)
class _Running:
    """A process."""

    launched: Launched
    writer: asyncio.StreamWriter
    stream_to: OnEvent
    room: int = WINDOW
    """Bytes that may still be passed on before the engine has taken some."""
    taken: asyncio.Event = field(default_factory=asyncio.Event)
    door: Door | None = None
    passing: dict[int, asyncio.StreamWriter] = field(default_factory=dict)
    """Connections to the gateway, by number."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)


class ProcessHost:
    """The worker of a node that runs plugins' processes. All paths are the node's own."""

    def __init__(self, scratch: str, nice: int = 0) -> None:
        """``scratch``: a folder of this node for files, libraries and logs."""
        self._scratch = Path(scratch) / HOSTED
        self._nice = nice
        self._rows = RowsThere(self._scratch / "rows")
        shutil.rmtree(self._scratch / "lent", ignore_errors=True)  # of the engine before
        self._folders: dict[str, tuple[Path, Folders]] = {}
        """What is imported of each version, and where its processes write."""
        self._running: dict[int, _Running] = {}
        self._printed: dict[Path, int] = {}
        """How much of each log was passed on."""
        self._numbers = itertools.count(1)

    async def prepare(self, version: Version) -> Prepared:
        """Make a version ready: write its files, install its libraries, look whether it can be confined.

        It takes as long as libraries take to install.
        """
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
                        return Prepared(str(waiting))
                    await waiting.over()
        except Refused as error:
            return Prepared(error.failure.message)
        except OSError as error:
            return Prepared(f"its files cannot be written there: {error.strerror}")
        folders = Folders.of(self._scratch, version.source.name)
        folders = Folders(folders.scratch, folders.log, runtime)
        self._folders[version.source.version] = path, folders
        return Prepared()

    async def rows_missing(self, digests: list[str]) -> list[str]:
        """Of the files of a task's rows, those that have not come."""
        return await asyncio.to_thread(self._rows.missing, digests)

    async def take_rows(self, digest: str, begin: int, piece: bytes) -> None:
        """A piece of such a file."""
        await asyncio.to_thread(self._rows.take, digest, begin, piece)

    async def rows_are_there(self, digest: str) -> None:
        """All pieces of it have come."""
        await asyncio.to_thread(self._rows.finish, digest)

    async def lend_rows(self, version: str, key: str, files: tuple[tuple[str, str], ...]) -> str:
        """Have such files where processes of a prepared version can read them; returns the folder."""
        folder = self._folders[version][1].lent / key
        await asyncio.to_thread(self._rows.lay_out, files, folder)
        return str(folder)

    async def run(self, number: int, version: str, *, stream_to: OnEvent) -> str:
        """Run a process of a prepared version until it ends; returns a sentence about its end."""
        launched = await launch(*self._folders[version])
        reader, writer = await asyncio.open_connection(sock=launched.connection, limit=PIECE)
        running = self._running[number] = _Running(launched, writer, stream_to)
        stream_to(Began(launched.pid))
        tasks = [asyncio.ensure_future(self._pulse(running)), asyncio.ensure_future(self._report(running))]
        try:
            await self._pass_on(running, reader)
            return await launched.wait()
        finally:
            launched.kill()
            for task in (*tasks, *running.tasks):
                task.cancel()
            await asyncio.gather(*tasks, *running.tasks, return_exceptions=True)
            stream_to(self._used(running))
            if running.door is not None:
                running.door.close()
            launched.pulse.close()
            writer.close()
            del self._running[number]

    async def send(self, number: int, data: bytes) -> None:
        """Bytes for a process; empty: nothing more comes."""
        if running := self._running.get(number):
            if data:
                running.writer.write(data)
            else:
                running.writer.close()

    async def taken(self, number: int, count: int) -> None:
        """So many bytes of a process were taken by whoever they are for."""
        if running := self._running.get(number):
            running.room += count
            running.taken.set()

    async def ask(self, number: int, data: bytes) -> None:
        """Bytes for the connection of a process's pulse."""
        if running := self._running.get(number):
            with contextlib.suppress(OSError):
                running.launched.pulse.connection.send(data)

    async def kill(self, number: int) -> None:
        """Kill a process and all that it started."""
        if running := self._running.get(number):
            running.launched.kill()

    async def interrupt(self, number: int) -> None:
        """Ask a process to break out of what blocks it."""
        if running := self._running.get(number):
            running.launched.interrupt()

    async def open_door(self, number: int) -> str:
        """The name of a socket, in the folder that a process sees, that leads to the engine's gateway.

        Raises ``EnvironmentFailure`` where none can be made.
        """
        running = self._running[number]
        if running.door is None:
            running.door = _Door(lambda: self._passage(running), running.launched.scratch)
        return await running.door.open("http://gateway")

    async def passed(self, number: int, passage: int, data: bytes) -> None:
        """Bytes of the gateway for a connection; empty: it sends nothing more."""
        running = self._running.get(number)
        if running is not None and (writer := running.passing.get(passage)) is not None:
            with contextlib.suppress(OSError):
                if data:
                    writer.write(data)
                else:
                    writer.write_eof()

    async def _pass_on(self, running: _Running, reader: asyncio.StreamReader) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(PIECE):
                running.stream_to(Said(data))
                running.room -= len(data)
                while running.room <= 0:
                    running.taken.clear()
                    await running.taken.wait()

    async def _pulse(self, running: _Running) -> None:
        loop, connection = asyncio.get_running_loop(), running.launched.pulse.connection
        with contextlib.suppress(OSError):
            while data := await loop.sock_recv(connection, PIECE):
                running.stream_to(Said(data, pulse=True))

    async def _report(self, running: _Running) -> None:
        while True:
            running.stream_to(self._used(running))
            running.launched.trim_log()
            await asyncio.sleep(LOOK)

    def _used(self, running: _Running) -> Used:
        launched = running.launched
        return Used(launched.computed(), launched.delayed(), self._prints(launched.log))

    def _prints(self, log: Path) -> bytes:
        """What was printed since the last report of any process of this log."""
        with contextlib.suppress(OSError), open(os.open(log, os.O_RDONLY | os.O_NOFOLLOW), "rb") as file:
            size = file.seek(0, os.SEEK_END)
            begin = self._printed.get(log, 0)
            if size < begin:  # it was trimmed
                begin = 0
            self._printed[log] = size
            file.seek(max(begin, size - MOST_PRINTED))
            return file.read(MOST_PRINTED)
        return b""

    async def _passage(self, running: _Running) -> Connection:
        """A connection to the gateway, by way of the engine."""
        number, (ours, theirs) = next(self._numbers), socket.socketpair()
        reader, writer = await asyncio.open_connection(sock=theirs)
        running.passing[number] = writer
        running.stream_to(Passed(number, None))

        async def copy() -> None:
            with contextlib.suppress(OSError):
                while data := await reader.read(PIECE):
                    running.stream_to(Passed(number, data))
            running.stream_to(Passed(number, b""))

        task = asyncio.ensure_future(copy())
        running.tasks.add(task)
        task.add_done_callback(running.tasks.discard)
        return await asyncio.open_connection(sock=ours)


class _Door(Door):
    """A door whose other side is the engine, not an address of this machine."""

    def __init__(self, passage: Callable[[], Awaitable[Connection]], folder: Path) -> None:
        super().__init__(folder)
        self._passage = passage

    async def _connect(self) -> Connection:
        return await self._passage()
