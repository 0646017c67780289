"""The real server and a client that keeps cookies as browsers do: by host and path, whatever the port."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import aiohttp
import pytest
from aiohttp import web

from marlaas.app.web import Gate, serve

from .visitor import Visitor


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


async def test_two_servers_side_by_side_in_one_browser() -> None:
    async with serving() as one, serving() as two:
        browser, same = Visitor(one), Visitor(two)
        async with browser.client, same.client:
            for address in (one, two, one, two):
                status, _ = await browser.open(address)
                assert status == 200
            assert (await same.open(two))[0] == 403  # another browser


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


async def test_a_websocket_beneath_the_path_needs_the_cookie() -> None:
    async with serving() as address:
        browser, stranger = Visitor(address), Visitor(address)
        async with browser.client, stranger.client:
            await browser.open(address)
            socket = f"{browser.base}/ws"
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await stranger.client.ws_connect(socket, origin=browser.origin)
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await browser.client.ws_connect(socket, origin="http://localhost:3000")
            with pytest.raises(aiohttp.WSServerHandshakeError, match="403"):
                await browser.client.ws_connect(f"{browser.origin}/ws", origin=browser.origin)
