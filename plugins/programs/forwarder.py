"""From 127.0.0.1 in a process without a network, through a Unix socket, to the gateway."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from ..messages import Endpoint

PIECE = 64 << 10
MOST = 512
"""At once; more are closed."""

Connection = tuple[asyncio.StreamReader, asyncio.StreamWriter]


class Passing:
    """Forwards connections to ``connect``."""

    def __init__(self, connect: Callable[[], Awaitable[Connection]]) -> None:
        self._connect = connect
        self._under_way: set[asyncio.Task[None]] = set()

    def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if len(self._under_way) >= MOST:
            writer.close()
            return
        task = asyncio.get_running_loop().create_task(self._pass(reader, writer))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)

    def close(self) -> None:
        for task in self._under_way:
            task.cancel()

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.closing(writer), contextlib.suppress(OSError):
            far_reader, far_writer = await self._connect()
            with contextlib.closing(far_writer):
                there = asyncio.ensure_future(_copied(reader, far_writer))
                back = asyncio.ensure_future(_copied(far_reader, writer))
                try:  # the other end learns at once of a client that has gone: nobody waits for the answer
                    await asyncio.wait((there, back), return_when=asyncio.FIRST_COMPLETED)
                    if there.done() and not there.cancelled() and there.exception() is None and there.result():
                        await back
                finally:
                    there.cancel()
                    back.cancel()
                    await asyncio.wait((there, back))


async def _copied(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    with contextlib.suppress(OSError):
        while data := await reader.read(PIECE):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
            return True
    return False


class Forwarder:
    """On 127.0.0.1, each for a Unix socket in a folder."""

    def __init__(self, folder: Path) -> None:
        self._folder = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        """A path to a socket has 108 characters at most, so it leads over a descriptor."""
        self._open: dict[str, asyncio.Task[int]] = {}
        self._passing: list[Passing] = []
        self._servers: list[asyncio.Server] = []

    async def inside(self, endpoint: Endpoint, name: str) -> Endpoint:
        """The endpoint, through the socket ``name``. Raises ``OSError``."""
        there = urlsplit(endpoint.url)
        return replace(endpoint, url=there._replace(netloc=f"127.0.0.1:{await self.port(name)}").geturl())

    async def port(self, name: str) -> int:
        """Leads to the socket ``name``. Raises ``OSError``."""
        if name not in self._open:
            self._open[name] = asyncio.ensure_future(self._listen(name))
        return await asyncio.shield(self._open[name])

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for passing in self._passing:
            passing.close()
        os.close(self._folder)

    async def _listen(self, name: str) -> int:
        path = f"/proc/self/fd/{self._folder}/{name}"
        passing = Passing(lambda: asyncio.open_unix_connection(path))
        server = await asyncio.start_server(passing.accept, "127.0.0.1", 0)
        self._passing.append(passing)
        self._servers.append(server)
        port: int = server.sockets[0].getsockname()[1]
        return port
