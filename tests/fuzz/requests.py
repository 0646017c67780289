"""The border at which browsers ask: bytes on the port of a real server, of somebody who is let in and of anybody else.

The server is started when the first request is to be sent, and ends with the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import sys
import threading
from functools import lru_cache
from typing import Any

from marlaas.app.web import Gate, serve

from .borders import Border

_PATIENCE = 0.5
"""Seconds: what is complete is answered in some milliseconds."""
_OPEN = b"@cookie@"
"""Stands for the cookie of the browser that was let in."""
ROOT = b"/@root@/"
"""Stands for the secret path."""
HEAD = b"Host: 127.0.0.1:8000\r\nCookie: " + _OPEN + b"\r\n"
_UPGRADE = (
    b"Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nOrigin: http://127.0.0.1:8000\r\n"
)


class Served:
    """A server in a thread of its own, with a command that ends at once in the application's place."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.faults: list[str] = []
        """What the loop was left alone with."""
        self.loop.set_exception_handler(lambda _, context: self.faults.append(repr(context)))
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        ready: asyncio.Future[str] = asyncio.run_coroutine_threadsafe(_future(), self.loop).result()
        command = f"{sys.executable} -c pass"
        self.serving = asyncio.run_coroutine_threadsafe(serve(command, 0, Gate(), ready.set_result), self.loop)
        address = asyncio.run_coroutine_threadsafe(_wait(ready), self.loop).result()
        self.port = int(re.findall(r":(\d+)/", address)[0])
        path = address[address.index("/", len("http://")) :].encode()
        opened = self.ask(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
        self.cookie = re.findall(rb"(?i)set-cookie: ([^;\r]+)", opened)[0]
        self.home = re.findall(rb"(?i)location: ([^\r]+)", opened)[0]

    def ask(self, request: bytes) -> bytes:
        """What the server answers, up to the end of the connection or of its first words."""
        return asyncio.run_coroutine_threadsafe(_asked(self.port, request), self.loop).result()


async def _future() -> asyncio.Future[str]:
    return asyncio.get_running_loop().create_future()


async def _wait(ready: asyncio.Future[Any]) -> str:
    return str(await ready)


async def _asked(port: int, request: bytes) -> bytes:
    """The first words of the answer; a request that has no end has none, and is waited for no longer than that."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    answer = b""
    with contextlib.suppress(ConnectionError, TimeoutError):
        writer.write(request)
        async with asyncio.timeout(_PATIENCE):
            while b"\r\n\r\n" not in answer and (part := await reader.read(1 << 16)):
                answer += part
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    return answer


@lru_cache(1)
def served() -> Served:
    """One for all requests."""
    return Served()


def requests(data: bytes) -> None:
    """Answered, or the connection is closed; never a fault of the server's own, and the next page opens."""
    server = served()
    for cookie in (server.cookie, b"none=x"):
        answer = server.ask(data.replace(_OPEN, cookie).replace(ROOT, server.home))
        assert not answer or answer.startswith(b"HTTP/")
        assert b" 500 " not in answer.split(b"\r\n")[0], answer[:300]
    assert server.faults == []
    page = server.ask(
        b"GET "
        + server.home
        + b" HTTP/1.1\r\nHost: 127.0.0.1\r\nCookie: "
        + server.cookie
        + b"\r\nConnection: close\r\n\r\n"
    )
    assert page.startswith(b"HTTP/1.1 200"), page[:300]


REQUESTS = (
    Border(
        "requests",
        [
            b"GET " + ROOT + b" HTTP/1.1\r\n" + HEAD + b"\r\n",
            b"GET / HTTP/1.1\r\n" + HEAD + b"\r\n",
            b"GET " + ROOT + b"static/js/textual.js HTTP/1.1\r\n" + HEAD + b"\r\n",
            b"GET "
            + ROOT
            + b"ws?width=80&height=24 HTTP/1.1\r\n"
            + HEAD
            + _UPGRADE
            + b"\r\n\x81\x85\x00\x00\x00\x00hello",
            b"GET " + ROOT + b"download/x HTTP/1.1\r\n" + HEAD + b"\r\n",
            b"POST " + ROOT + b" HTTP/1.1\r\n" + HEAD + b"Content-Length: 3\r\n\r\nabc",
        ],
        [
            b"\r\n",
            b"Host: ",
            b"Cookie: ",
            b"..",
            b"%2e%2e/",
            b"%00",
            b"?width=x",
            b"&height=-1",
            b"Transfer-Encoding: chunked",
            b"HEAD",
            b"/ws",
            b"/static/",
            b"//",
            ROOT,
            b":",
            b";",
            b"Origin: ",
        ],
        requests,
    ),
)
