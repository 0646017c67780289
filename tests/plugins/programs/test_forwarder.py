"""Connections that are passed on, over a Unix socket: all bytes in both directions, and the end of either side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from marlaas.engine.environments.process.launch import Door
from marlaas.engine.errors import EnvironmentFailure
from marlaas.plugins import Endpoint
from marlaas.plugins.programs import forwarder
from marlaas.plugins.programs.forwarder import Forwarder


@asynccontextmanager
async def way(folder: Path, far: str) -> AsyncIterator[int]:
    """The port at which a process in ``folder`` reaches the server ``far``."""
    door, inside = Door(folder), Forwarder(folder)
    try:
        name = await door.open(far)
        assert await door.open(far) == name and (folder / name).is_socket()
        port = await inside.port(name)
        own = await inside.inside(Endpoint(f"{far}/x", "key"), name)
        assert own == Endpoint(f"http://127.0.0.1:{port}{urlsplit(far).path}/x", "key")
        yield port
    finally:
        inside.close()
        door.close()
        await asyncio.sleep(0)
    assert not list(folder.iterdir())


@asynccontextmanager
async def echo() -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while data := await reader.read(1 << 16):
            writer.write(data)
            await writer.drain()
        writer.write(b"<end>")
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/v1"
    server.close()


async def test_bytes_go_both_ways(tmp_path: Path) -> None:
    """Through a folder whose path is longer than a socket's may be."""
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    async with echo() as far, way(folder, far) as port:

        async def one(number: int) -> bytes:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(b"%d" % number * 200_000)
            writer.write_eof()
            said = await reader.read()
            writer.close()
            return said

        said = await asyncio.gather(*(one(number) for number in range(4)))
        assert said == [b"%d" % number * 200_000 + b"<end>" for number in range(4)]


async def test_a_client_that_leaves_is_told_of(tmp_path: Path) -> None:
    left = asyncio.Event()

    async def streams(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b"token")
        await reader.read()
        left.set()
        writer.close()

    server = await asyncio.start_server(streams, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    async with way(tmp_path, url) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.readexactly(5) == b"token"
        writer.close()
        await left.wait()
    server.close()


async def test_nobody_is_at_the_other_end(tmp_path: Path) -> None:
    async with way(tmp_path, "http://127.0.0.1:9") as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


async def test_connections_have_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(forwarder, "MOST", 0)
    async with echo() as far, way(tmp_path, far) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert await reader.read() == b""
        writer.close()


async def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    with pytest.raises(EnvironmentFailure, match=r"No socket to the gateway can be made in .*gone"):
        await Door(tmp_path / "gone").open("http://127.0.0.1:9")
