"""serve: a real server on a port of this machine, with the real application behind its gate."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import aiohttp
import pytest

from marlaas.app.cli.api import served
from marlaas.engine.home.paths import Home

from ..commanding import Commander
from ..filling import fill_full
from .visitor import Visitor

pytestmark = pytest.mark.processes


@contextmanager
def serving(home: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
    """The address that the server printed, and its process."""
    command = [sys.executable, "-m", "marlaas.app.cli.main", "--home", str(home), "serve", "--port", "0", *options]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env=os.environ | {"EDITOR": "vi"},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None
    try:
        yield process.stdout.readline().strip(), process
    finally:
        process.send_signal(signal.SIGINT)
        process.wait(50)
        process.stdout.close()


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Home:
    """A home with tasks."""
    home = Home(tmp_path_factory.mktemp("served"))
    fill_full(home.database, time.time(), tasks=4)
    return home


async def test_one_browser_sees_it_and_nobody_else_anything(home: Home) -> None:
    with serving(home.root) as (address, process):
        first, second = Visitor(address), Visitor(address)
        try:
            for path in ("/", "/ws", "/static/js/textual.js", "/download/x", "/nonsense", "/nonsense/"):
                assert (await first.open(first.origin + path))[0] == 403
            status, page = await first.open(address)
            assert status == 200 and f'{first.base.replace("http", "ws")}/ws"' in page
            assert (await second.open(address))[0] == 403
            assert (await first.open("/", Host="evil.example"))[0] == 403
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await second.client.ws_connect(f"{first.base}/ws", origin=first.origin)
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await first.client.ws_connect(f"{first.base}/ws", origin="http://localhost:3000")
            await first.sees("read-only", keys="x", after="physics-lab")
        finally:
            await first.client.close()
            await second.client.close()
    assert process.returncode == 130


async def test_a_page_ends_with_the_server(home: Home) -> None:
    with serving(home.root) as (address, process):
        visitor = Visitor(address)
        try:
            await visitor.open(address)
            async with visitor.client.ws_connect(f"{visitor.base}/ws", origin=visitor.origin) as page:
                await page.receive()
                process.send_signal(signal.SIGINT)
                async with asyncio.timeout(50):
                    while (await page.receive()).type not in (aiohttp.WSMsgType.CLOSE, aiohttp.WSMsgType.CLOSED):
                        pass
        finally:
            await visitor.client.close()


def test_read_only_unless_control_is_asked_for() -> None:
    assert served("/home of mine", control=False)[-4:] == ["--home", "/home of mine", "--web", "--readonly"]
    assert "--readonly" not in served("/h", control=True)


def test_without_the_extra_one_sentence_says_what_to_install(
    marlaas: Commander, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.app.cli.api.find_spec", lambda name: None)
    said = marlaas("serve")
    assert said.code == 2 and '`pip install "textual-serve>=1.1,<2"`' in said.err


def test_a_port_that_is_taken(marlaas: Commander) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = marlaas("serve", "--port", str(taken.getsockname()[1]))
    assert said.code == 2 and "is not free" in said.err and "--port" in said.err
    assert marlaas("serve", "--port", "70000").code == 2
