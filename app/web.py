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

# Decides who may use the application in a browser: a secret path opens one session, and a cookie keeps it open.
#
# Pure, except that opening the path uses it up; knows no web server. Whoever can reach the port may be another user
# of this machine, or a page in the person's own browser. A browser sends its cookies to every port of a host: ours is
# for the secret path alone, which no other server there knows.

LOCAL = ("127.0.0.1", "localhost", "[::1]")
"""Names by which a browser may address this server, also behind an SSH tunnel.

Another name means that a foreign page has made its own name point here.
"""


class Verdict(Enum):
    """What is done with a request."""

    PASS = auto()
    OPEN = auto()
    """The first request at the secret path: it gets the cookie, and is redirected there."""
    REFUSE = auto()


@dataclass(frozen=True)
class Asked:
    """The parts of a request that matter here; missing ones are empty."""

    host: str
    """The header of that name, with the port."""
    path: str
    origin: str = ""
    """The page that opens a websocket."""
    cookies: tuple[str, ...] = ()
    """All values under the cookie's name: other servers of the host may have set some as well."""
    websocket: bool = False


@dataclass
class Gate:
    """Guards one server."""

    secret: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """The secret path, which opens one session, once."""
    session: str = field(default_factory=lambda: secrets.token_urlsafe(32))
    """The cookie's value."""
    used: bool = False

    @property
    def root(self) -> str:
        """The path that all addresses begin with, and that the cookie is for."""
        return f"/{self.secret}/"

    def judge(self, asked: Asked) -> Verdict:
        """Let a request pass, open the session, or refuse."""
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
    """The values under one name in a header ``Cookie``."""
    pairs = (pair.strip().partition("=") for pair in header.split(";"))
    return tuple(value for key, _, value in pairs if key == name)


def _name(host: str) -> str:
    name, colon, port = host.rpartition(":")
    return (name if colon and port.isascii() and port.isdigit() else host).lower()


def _equal(one: str, other: str) -> bool:
    """Whether two texts are equal, in a time that does not depend on how much of them is."""
    return hmac.compare_digest(one.encode("utf-8", "replace"), other.encode())


# The web server: textual-serve behind the gate, on this machine alone. Needs the extra ``serve``.
#
# Each websocket that the gate lets in gets a process of the application, which ends with it.

HOST = "127.0.0.1"
MOST = 8
"""Sessions at the same time; each is a process."""
SCRIPT = "static/js/textual.js"
GOODBYE = 1.0
"""Seconds that open pages get to close when the server ends."""
HEADERS = {
    # Nothing from elsewhere (the page would ask for fonts), no frame around it, no trace of the secret path.
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}
CLOSED = "403: this page opens with the address that `marlaas serve` printed, once, in one browser.\n"

_QUIET = logging.getLogger("marlaas.web")
"""The log for invalid requests, which anybody on this machine can send to aiohttp."""
_QUIET.addHandler(logging.NullHandler())
_QUIET.propagate = False

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class WebServer(Server):
    """Serves the output of one command to those whom the gate lets in."""

    def __init__(self, command: str, gate: Gate) -> None:
        super().__init__(command, host=HOST, title="marlaas")
        self._gate = gate
        self._open = 0

    async def application(self) -> web.Application:
        """The routes, all below the secret path; every request passes the gate."""
        application = web.Application(middlewares=[self._guard])
        application.on_response_prepare.append(_add_headers)
        application.router.add_get(f"{self._gate.root}{SCRIPT}", self._script)
        application.add_subapp(self._gate.root, await self._make_app())
        return application

    async def on_startup(self, app: web.Application) -> None:
        """Do nothing: the verb prints the address, once the port is known."""

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
        """The page's script, with its downloads moved below the secret path."""
        text = (self.statics_path.parent / SCRIPT).read_text(encoding="utf-8")
        text = text.replace(
            "${window.location.origin}/download/", f"${{window.location.origin}}{self._gate.root}download/"
        )
        return web.Response(text=text, content_type="text/javascript")

    async def handle_index(self, request: web.Request) -> web.Response:
        """The page; its addresses are those by which the browser knows this server, perhaps through a tunnel."""
        place = f"{request.host}{self._gate.root}"
        context = {
            "font_size": 16,
            "app_websocket_url": f"ws://{place}ws",
            "config": {"static": {"url": f"http://{place}static/"}},
            "application": {"name": self.title},
        }
        return aiohttp_jinja2.render_template("app_index.html", request, context)

    async def handle_websocket(self, request: web.Request) -> web.WebSocketResponse:
        """Run the application for one page."""
        if self._open >= MOST:
            raise web.HTTPServiceUnavailable(text=f"{MOST} pages are open; close one.\n")
        self._open += 1
        try:
            return await super().handle_websocket(request)
        finally:
            self._open -= 1


def _cookie(request: web.Request) -> str:
    """The cookie's name, which has the port so that servers on other ports keep their own."""
    local = request.transport.get_extra_info("sockname") if request.transport else None
    return f"marlaas-session-{local[1] if local else 0}"


async def _add_headers(request: web.Request, response: web.StreamResponse) -> None:
    response.headers.update(HEADERS)
    response.headers["Content-Security-Policy"] = (
        f"default-src 'self' 'unsafe-inline' data: blob:; connect-src 'self' ws://{request.host};"
        " frame-ancestors 'none'; form-action 'none'; base-uri 'none'"
    )


async def serve(command: str, port: int, gate: Gate, ready: Callable[[str], None]) -> None:
    """Serve until cancelled; ``port`` 0 takes a free one. ``ready`` gets the address that opens the session.

    Raises ``OSError`` if the port is not available.
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
