"""The application in a browser: textual-serve behind a gate, on this machine only. Needs the extra ``serve``."""

from __future__ import annotations

import asyncio
import hmac
import logging
import secrets
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from enum import Enum, auto

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


class Verdict(Enum):
    """What is done with a request."""

    PASS = auto()
    OPEN = auto()
    """It gets the cookie and a redirect there."""
    REFUSE = auto()


@dataclass(frozen=True)
class Asked:
    """The relevant parts of a request; missing: empty."""

    host: str
    """Header of that name, with port."""
    path: str
    origin: str = ""
    """The page that opens a websocket."""
    cookies: tuple[str, ...] = ()
    """All values under the cookie's name: other servers of the host may set some."""
    websocket: bool = False


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

    def judge(self, asked: Asked) -> Verdict:
        if _name(asked.host) not in LOCAL or (asked.websocket and asked.origin != f"http://{asked.host}"):
            return Verdict.REFUSE
        if not _equal(asked.path[: len(self.root)], self.root):
            return Verdict.REFUSE
        if self.used and any(_equal(cookie, self.session) for cookie in asked.cookies):
            return Verdict.PASS
        if not self.used and not asked.websocket and len(asked.path) == len(self.root):
            self.used = True
            return Verdict.OPEN
        return Verdict.REFUSE


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
        asked = Asked(
            host=request.headers.get("Host", ""),
            path=request.path,
            origin=request.headers.get("Origin", ""),
            cookies=cookies("; ".join(request.headers.getall("Cookie", [])), name),
            websocket=request.path == f"{self._gate.root}ws" or "Upgrade" in request.headers,
        )
        verdict = self._gate.judge(asked)
        if verdict is Verdict.REFUSE:
            return web.Response(status=403, text=CLOSED)
        if verdict is Verdict.PASS:
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
