"""The application in a browser: textual-serve behind a gate, on this machine only. Needs the extra ``serve``."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

import aiohttp_jinja2
from aiohttp import web
from textual_serve.server import Server

# A secret path opens one session, a cookie keeps it open.
#
# Pure, except that opening uses the path up; knows no web server. Threats: other users of this machine, pages in the
# person's browser. Browsers send cookies to every port of a host: ours is for the secret path, unknown to other
# servers.

LOCAL = ("127.0.0.1", "localhost", "[::1]")
"""Host names allowed for this server, also behind an SSH tunnel.

Another name: a foreign page points its name here.
"""


Verdict = Literal["pass", "open", "refuse"]
"""What is done with a request; *open*: it gets the cookie and a redirect there."""


@dataclass
class Gate:
    """Guards one server."""

    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """The secret path; opens one session, once."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """The cookie's value."""
    used: bool = False

    @property
    def root(self) -> str:
        """The prefix of all addresses, and the cookie's path."""
        return f"/{self.secret}/"

    def judge(
        self, host: str, path: str, origin: str = "", cookies: Sequence[str] = (), websocket: bool = False
    ) -> Verdict:
        """Judge a request by its headers; ``origin`` is the page that opens a websocket.

        ``cookies``: all values under the cookie's name, since other servers of the host may set some.
        """
        if _name(host) not in LOCAL or (websocket and origin != f"http://{host}"):
            return "refuse"
        if not _equal(path[: len(self.root)], self.root):
            return "refuse"
        if self.used:
            return "pass" if any(_equal(cookie, self.session) for cookie in cookies) else "refuse"
        if websocket or len(path) != len(self.root):
            return "refuse"
        self.used = True
        return "open"


def cookies(header: str, name: str) -> tuple[str, ...]:
    """The values under one name in a ``Cookie`` header."""
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return tuple(value for key, _, value in pairs if key == name)


def _name(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isascii() and port.isdigit() else host).lower()


def _equal(one: str, other: str) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


# Each admitted websocket gets a process of the application, which ends with it.

HOST = "127.0.0.1"
MOST = 8
"""Concurrent sessions; each is a process."""
SCRIPT = "static/js/textual.js"
GOODBYE = 1.0
"""Seconds for open pages to close at the server's end."""
HEADERS = {
    # Nothing from elsewhere (the page would fetch fonts), no frames, no trace of the secret path.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
CLOSED = "403: this page opens with the address that `marlaas serve` printed, once, in one browser.\n"

_QUIET = logging.getLogger("marlaas.web")
"""Log of invalid requests, which anybody on this machine can send to aiohttp."""
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer(Server):
    """Serves one command's output to those admitted by the gate."""

    def __init__(self, command: str, gate: Gate) -> None:
        super().__init__(command, host=HOST, title="marlaas")
        self._gate = gate
        self._open = 0

    async def application(self) -> web.Application:
        """Routes below the secret path; every request passes the gate."""
        application = web.Application(middlewares=[self._guard])
        application.on_response_prepare.append(_add_headers)
        application.router.add_get(f"{self._gate.root}{SCRIPT}", self._script)
        application.add_subapp(self._gate.root, await self._make_app())
        return application

    async def on_startup(self, app: web.Application) -> None:
        """Do nothing: the verb prints the address once the port is known."""

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        name = _cookie(request)
        verdict = self._gate.judge(
            request.headers.get("Host", ""),
            request.path,
            request.headers.get("Origin", ""),
            cookies("; ".join(request.headers.getall("Cookie", [])), name),
            websocket=request.path == f"{self._gate.root}ws" or "Upgrade" in request.headers,
        )
        if verdict == "refuse":
            return web.Response(status=403, text=CLOSED)
        if verdict == "pass":
            try:
                return await handler(request)
            except OSError:  # an impossible path for a file
                raise web.HTTPNotFound from None
        response = web.Response(status=303, headers={"Location": self._gate.root})
        response.set_cookie(name, self._gate.session, path=self._gate.root, httponly=True, samesite="Lax")
        return response

    async def _script(self, request: web.Request) -> web.Response:
        """The page's script, with downloads below the secret path."""
        text = (self.statics_path.parent / SCRIPT).read_text(encoding="utf-8")
        text = text.replace(
            "${window.location.origin}/download/", f"${{window.location.origin}}{self._gate.root}download/"
        )
        return web.Response(text=text, content_type="text/javascript")

    async def handle_index(self, request: web.Request) -> web.Response:
        """The page; addresses as the browser sees this server, perhaps through a tunnel."""
        place = f"{request.host}{self._gate.root}"
        context = {
            "font_size": 16,
            "app_websocket_url": f"ws://{place}ws",
            "config": {"static": {"url": f"http://{place}static/"}},
            "application": {"name": self.title},
        }
        return aiohttp_jinja2.render_template("app_index.html", request, context)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        if self._open >= MOST:
            raise web.HTTPServiceUnavailable(text=f"{MOST} pages are open; close one.\n")
        self._open += 1
        try:
            return await super().handle_websocket(request)
        finally:
            self._open -= 1


def _cookie(request: web.Request) -> str:
    """It has the port, to separate servers."""
    local = request.transport.get_extra_info("sockname") if request.transport else None
    return f"marlaas-session-{local[1] if local else 0}"


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers["Content-Security-Policy"] = (
        f"default-src 'self' 'unsafe-inline' data: blob:; connect-src 'self' ws://{request.host};"
        " frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
    )


async def serve(command: str, port: int, gate: Gate, ready: Callable[[str], None]) -> None:
    """Serve until cancelled; ``port`` 0: a free one. ``ready`` gets the session's address.

    Raises ``OSError`` if the port is unavailable.
    """
    application = await WebServer(command, gate).application()
    runner = web.AppRunner(application, access_log=None, logger=_QUIET, shutdown_timeout=GOODBYE)
    await runner.setup()
    try:
        await web.TCPSite(runner, HOST, port).start()
        ready(f"http://{HOST}:{runner.addresses[0][1]}{gate.root}")
        await asyncio.Event().wait()
    finally:
        await runner.cleanup()
