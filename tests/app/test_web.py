"""The application in a browser: who is let in, by a real server with the real application behind its gate."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given, strategies as st

from marlaas.app.web import Gate, serve
from marlaas.engine.home.paths import Home
from tests.app.commanding import Commander
from tests.app.filling import fill_full

HERE = "127.0.0.1:8000"


def opened() -> Gate:
    """A gate whose path was opened by a browser."""
    gate = Gate()
    assert gate.judge(HERE, gate.root) == "open"
    return gate


def test_the_path_opens_once_and_its_cookie_counts_below_it() -> None:
    gate = opened()
    browser = ("planted", gate.session, "more")  # another server of the host may plant cookies
    assert gate.judge(HERE, gate.root) == "refuse"
    assert gate.judge(HERE, gate.root, cookies=browser) == "pass"
    assert gate.judge(HERE, f"{gate.root}static/", cookies=browser) == "pass"
    assert gate.judge(HERE, f"{gate.root}ws", f"http://{HERE}", browser, websocket=True) == "pass"
    for path in ("", "/", "/ws", "/static/", "/ä/", gate.root[:-1]):
        assert gate.judge(HERE, path, cookies=browser) == "refuse"


@pytest.mark.parametrize("host", ["", "evil.example", "127.0.0.1.evil.example:80", "localhost:80:80", "10.0.0.1:8000"])
def test_a_foreign_name_is_a_foreign_page(host: str) -> None:
    gate, fresh = opened(), Gate()
    assert gate.judge(host, gate.root, cookies=(gate.session,)) == "refuse"
    assert fresh.judge(host, fresh.root) == "refuse" and not fresh.used


@pytest.mark.parametrize(
    "origin", ["", "null", "http://localhost:3000", "https://127.0.0.1:8000", "http://evil.example"]
)
def test_a_foreign_page_opens_no_websocket(origin: str) -> None:
    gate = opened()
    assert gate.judge(HERE, gate.root, origin, (gate.session,), websocket=True) == "refuse"


@given(st.text(), st.text(), st.booleans())
def test_nothing_else_does(path: str, cookie: str, websocket: bool) -> None:
    fresh = Gate()
    for gate in (fresh, opened()):
        assert gate.judge(HERE, path, f"http://{HERE}", (cookie,), websocket) == "refuse"
    assert fresh.judge(HERE, fresh.root, websocket=True) == "refuse" and not fresh.used


@asynccontextmanager
async def serving(command: str = "true") -> AsyncIterator[str]:
    """The address of a server in this process."""
    address: asyncio.Future[str] = asyncio.get_running_loop().create_future()
    server = asyncio.create_task(serve(command, 0, Gate(), address.set_result))
    try:
        yield await address
    finally:
        server.cancel()
        await asyncio.gather(server, return_exceptions=True)


@asynccontextmanager
async def neighbour() -> AsyncIterator[tuple[str, list[str]]]:
    """Somebody else's server on another port: its address, and the headers in which it is told secrets."""
    told: list[str] = []

    async def hear(request: web.Request) -> web.Response:
        told.extend(request.headers.getall("Cookie", []) + request.headers.getall("Referer", []))
        response = web.Response(text="welcome")
        if "port" in request.query:
            response.set_cookie(f"marlaas-session-{request.query['port']}", "planted")
        return response

    application = web.Application()
    application.router.add_get("/{path:.*}", hear)
    runner = web.AppRunner(application, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield f"http://127.0.0.1:{runner.addresses[0][1]}", told
    finally:
        await runner.cleanup()


async def test_a_server_on_another_port_is_sent_no_cookie() -> None:
    async with serving() as address, neighbour() as (other, told):
        browser = Visitor(address)
        async with browser.client:
            assert (await browser.open(address))[0] == 200
            for path in ("/", "/ws", "/static/js/textual.js", "/download/x", "/favicon.ico"):
                assert (await browser.open(other + path))[0] == 200
            assert told == []


async def test_a_cookie_that_another_server_plants_locks_nobody_out() -> None:
    async with serving() as address, neighbour() as (other, _):
        browser = Visitor(address)
        async with browser.client:
            await browser.open(address)
            port = browser.origin.rpartition(":")[2]
            await browser.open(f"{other}/?port={port}")
            assert (await browser.open("/"))[0] == 200


async def test_everything_lies_beneath_the_secret_path() -> None:
    async with serving() as address:
        browser = Visitor(address)
        async with browser.client:
            for path in ("/", "/ws", "/static/js/textual.js", "/nonsense/"):
                assert (await browser.open(browser.origin + path))[0] == 403
            assert (await browser.open(f"{browser.base}/static/js/textual.js"))[0] == 403
            status, page = await browser.open(address)
            assert status == 200
            for path in ("/", "/ws", "/static/js/textual.js", "/nonsense/"):
                assert (await browser.open(browser.origin + path))[0] == 403
            for path in ("css/xterm.css", "images/background.png", "js/textual.js"):
                async with browser.client.get(f"{browser.base}/static/{path}") as response:
                    assert response.status == 200 and await response.read()
                    assert response.headers["Referrer-Policy"] == "no-referrer"
            assert f'{browser.base}/static/js/textual.js"' in page
            script = (await browser.open("/static/js/textual.js"))[1]
            assert f"{browser.base.removeprefix(browser.origin)}/download/$" in script
            assert "origin}/download/" not in script


@contextmanager
def program(home: Path, *options: str) -> Iterator[tuple[str, subprocess.Popen[str]]]:
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


@pytest.mark.processes
async def test_one_browser_sees_it_and_nobody_else_anything(home: Home) -> None:
    with program(home.root) as (address, process):
        first, second = Visitor(address), Visitor(address)
        try:
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


@pytest.mark.slow
@pytest.mark.processes
async def test_a_page_ends_with_the_server(home: Home) -> None:
    with program(home.root) as (address, process):
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


@pytest.mark.processes
def test_without_the_extra_one_sentence_says_what_to_install(
    marlaas: Commander, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("marlaas.app.cli.api.find_spec", lambda name: None)
    said = marlaas("serve")
    assert said.code == 2 and '`pip install "textual-serve>=1.1,<2"`' in said.err


@pytest.mark.processes
def test_a_port_that_is_taken(marlaas: Commander) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        said = marlaas("serve", "--port", str(taken.getsockname()[1]))
    assert said.code == 2 and "is not free" in said.err and "--port" in said.err
    assert marlaas("serve", "--port", "70000").code == 2


_SEQUENCES = re.compile(rb"\x1b\[[0-?]*[ -/]*[@-~]|\x1b[^\[]")


@dataclass
class Visitor:
    """One browser with its cookies."""

    address: str
    """With the secret path."""
    client: aiohttp.ClientSession = field(
        default_factory=lambda: aiohttp.ClientSession(cookie_jar=aiohttp.CookieJar(unsafe=True))
    )

    @property
    def base(self) -> str:
        """The address without its last slash."""
        return self.address.removesuffix("/")

    @property
    def origin(self) -> str:
        """The address without the path."""
        return self.base.rpartition("/")[0]

    async def open(self, path: str = "/", **headers: str) -> tuple[int, str]:
        """Status and text of a page."""
        address = path if path.startswith("http") else self.base + path
        async with self.client.get(address, headers=headers) as response:
            return response.status, await response.text()

    async def sees(self, words: str, keys: str = "", after: str = "") -> str:
        """All text that the application drew until it had drawn ``words``; ``keys`` are pressed once it has drawn
        ``after``."""
        seen = b""
        address = f"{self.base}/ws?width=100&height=30".replace("http:", "ws:")
        async with asyncio.timeout(30), self.client.ws_connect(address, origin=self.origin) as socket:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    seen += message.data
                    if keys and after in words_of(seen):
                        await socket.send_str(json.dumps(["stdin", keys]))
                        keys = ""
                if words in words_of(seen):
                    return words_of(seen)
        raise AssertionError(f"The page closed before {words!r} was there: {words_of(seen)}")


def words_of(drawn: bytes) -> str:
    """What a terminal shows, without where and how."""
    return _SEQUENCES.sub(b"", drawn).decode("utf-8", "replace")
