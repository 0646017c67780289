"""The gateway: ``python -P -m marlaas.engine.gateway.http.main LINK LISTEN LIMITS``.

LINK (a socketpair's end) and LISTEN (a bound socket) are inherited file descriptors; LIMITS is JSON of
``limits.Limits``. It ends with the link or the engine; open requests get 503 first.
"""

from __future__ import annotations

import asyncio
import ctypes
import ipaddress
import logging
import re
import resource
import signal
import socket
import sys
import traceback
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, MutableMapping, Sequence
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from functools import cache, partial
from types import MappingProxyType
from typing import Any
from urllib.parse import urlsplit

import h11
import msgspec
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route
from uvicorn.protocols.http.h11_impl import H11Protocol

from ... import wire
from ...wire import Answered, Piece, Refusal
from ..limits import Limits
from . import exchange as errors, logs as metrics
from .anthropic import CountBody, CountTokens, Messages, MessagesBody
from .exchange import ALIVE, HEADERS, Exchange
from .link import Link, gone, next_of
from .logs import Line, Log, shown_body
from .openai import ChatBody, ChatCompletions, CompletionBody, Completions
from .responses import Responses, ResponsesBody

INTERFACES: dict[str, tuple[type[Exchange], type, str]] = {
    "/v1/chat/completions": (ChatCompletions, ChatBody, "Go on with a conversation (OpenAI's chat completions)."),
    "/v1/completions": (
        Completions,
        CompletionBody,
        "Go on with prompts, as text or token ids (OpenAI's completions).",
    ),
    "/v1/responses": (Responses, ResponsesBody, "Go on with a conversation (OpenAI's Responses)."),
    "/v1/messages": (Messages, MessagesBody, "Go on with a conversation (Anthropic's messages)."),
    "/v1/messages/count_tokens": (CountTokens, CountBody, "Count a prompt's tokens (Anthropic's messages)."),
}
AGENT_PARAMETER = {"name": "agent", "in": "path", "required": True, "schema": {"type": "string"}}
MODEL_PARAMETER = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
KEYS: list[dict[str, list[str]]] = [{"bearer": []}, {"header": []}]


@cache
def document() -> dict[str, Any]:
    """The same each time."""
    schemas, components = msgspec.json.schema_components(
        [body for _, body, _ in INTERFACES.values()], ref_template="#/components/schemas/{name}"
    )
    paths: dict[str, Any] = {}
    for prefix, parameters in (("", []), ("/e/{agent}", [AGENT_PARAMETER])):
        for (path, (_, _, summary)), schema in zip(INTERFACES.items(), schemas, strict=True):
            asked = _operation(summary, parameters, {"application/json": "object", "text/event-stream": "string"})
            sent = {"required": True, "content": {"application/json": {"schema": schema}}}
            paths[prefix + path] = {"post": {**asked, "requestBody": sent}}
        paths[f"{prefix}/v1/models"] = {"get": _operation("What this key may name as a model.", parameters)}
        paths[f"{prefix}/v1/models/{{id}}"] = {"get": _operation("One model.", [*parameters, MODEL_PARAMETER])}
    figures = _operation("Figures for Prometheus, on this machine alone.", [], {"text/plain": "string"}, [])
    paths["/"] = paths["/healthz"] = {"get": _operation("Whether the engine can be asked.", [], keys=[])}
    paths["/metrics"] = {"get": figures}
    paths["/openapi.json"] = {"get": _operation("This document.", [], keys=[])}
    schemes = {
        "bearer": {"type": "http", "scheme": "bearer"},
        "header": {"type": "apiKey", "in": "header", "name": "x-api-key"},
    }
    about = {"title": "marlaas", "version": "1", "description": "Trained versions of a base model, for any client."}
    return {
        "openapi": "3.1.0",
        "info": about,
        "paths": paths,
        "components": {"schemas": components, "securitySchemes": schemes},
    }


def _operation(
    summary: str,
    parameters: list[dict[str, Any]],
    kinds: Mapping[str, str] = MappingProxyType({"application/json": "object"}),
    keys: list[dict[str, list[str]]] = KEYS,
) -> dict[str, Any]:
    content = {kind: {"schema": {"type": what}} for kind, what in kinds.items()}
    return {
        "summary": summary,
        "parameters": parameters,
        "responses": {
            "200": {"description": "The answer.", "content": content},
            "4XX": {"description": "Refused, in the form of the interface: what is wrong, and with which parameter."},
            "5XX": {"description": "Not answered; where `Retry-After` says when, another try may be."},
        },
        "security": keys,
    }


AGENTS = "/e/{agent}"
"""For one of a program's several agents."""
GRACE = 5.0
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Handle = Callable[[Request, Line, Send], Awaitable[Response | None]]


class Gateway:
    """Routes and their shared state."""

    def __init__(self, link: Link, limits: Limits) -> None:
        self.link = link
        self.limits = limits
        self.log = Log(limits)
        self.under_way = 0
        """Requests in progress."""
        self._asking: list[str] = []
        """The keys of requests in progress."""
        self.application = self._routes()
        self._bytes = 0
        """Of all bodies in progress."""
        self.requests = metrics.Requests()

    def _routes(self) -> Starlette:
        handlers: dict[str, Handle] = {
            "/": self._health,  # Claude Code asks whether its server is there
            "/healthz": self._health,
            "/metrics": self._metrics,
            "/openapi.json": self._openapi,
        }
        routes = [self._route(path, handle) for path, handle in handlers.items()]
        for prefix in ("", AGENTS):
            routes += [
                self._route(path, partial(self._ask, make), prefix, "POST") for path, (make, _, _) in INTERFACES.items()
            ]
            routes += [self._route(path, self._models, prefix) for path in ("/v1/models", "/v1/models/{id}")]
        application = Starlette(routes=routes, exception_handlers={HTTPException: self._no_route})
        application.router.redirect_slashes = False
        return application

    def _route(self, name: str, handle: Handle, prefix: str = "", method: str = "GET") -> Route:
        route = Route(prefix + name.replace("{id}", "{id:path}"), handle, methods=[method])
        route.app = partial(self._serve, name, handle)  # it sends by itself, also streams
        return route

    async def _serve(self, name: str, handle: Handle, scope: Any, receive: Receive, send: Send) -> None:
        request = Request(scope, receive)
        line, began = self.log.begin(name)
        self.under_way += 1
        try:
            response = await handle(request, line, send)
            if response is not None:
                line.status = response.status_code
                await response(scope, receive, send)
        except Exception as error:
            refusal = explained(error)
            begun = line.status or refusal.status == 499  # uvicorn closes a begun answer; nothing more can be sent
            line.status, line.error = refusal.status, refusal.code
            if not begun:
                await refuse(send, request, refusal)
        finally:
            self.under_way -= 1
            self.log.end(line, began)
            self.requests.add(line)

    async def crowded(self, scope: Any, receive: Receive, send: Send) -> None:
        """Serve a key that has no request in progress: no program takes the place of another."""
        with suppress(Refusal):
            if key_of(Request(scope)) not in self._asking:
                return await self.application(scope, receive, send)
        sentence = f"There are {self.limits.connections} connections already; try again when one has been closed."
        refusal = Refusal(503, "too_many_connections", sentence, retry_after=1.0)
        await refuse(send, Request(scope), refusal, {"Connection": "close"})

    async def _ask(self, make: type[Exchange], request: Request, line: Line, send: Send) -> None:
        line.key, line.agent = key_of(request), agent_of(request)
        async with self._body(request, line.key) as body:
            tries = request.headers.get("x-stainless-retry-count", "")
            retry = int(tries[:9]) if tries.isdecimal() else -1
            try:
                exchange = make(body, line.key, line.agent, request.headers.get("idempotency-key", ""), retry)
            except Refusal as refusal:
                self.link.reject(line.key, refusal.message)
                raise
            line.model, line.stream = exchange.asked.model, exchange.asked.stream
            if self.log.prompts:
                line.sent = shown_body(body)
            work = answer(self.link, exchange, send, line, self.limits.seconds)
            answered = await while_there(work, request.receive, self.limits.seconds + GRACE)
            if self.log.prompts and answered is not None:
                line.said = answered.choices

    @asynccontextmanager
    async def _body(self, request: Request, key: str) -> AsyncIterator[bytes]:
        """Counted until the block ends.

        Raises ``Refusal`` if too large, too slow, or compressed: a few bytes could expand without limit.
        """
        limits, body = self.limits, bytearray()
        encoding = request.headers.get("content-encoding", "identity")
        announced = request.headers.get("content-length", "")[:18]
        large = f"The body has more than {limits.body_bytes:,} bytes, the most that is read."
        self._asking.append(key)
        try:
            if encoding.strip().lower() not in ("", "identity"):
                sentence = (
                    f"The body is encoded as {encoding[:40]!r}, but is read as it comes: leave Content-Encoding out."
                )
                raise Refusal(415, "compressed", sentence)
            if announced.isdecimal() and int(announced) > limits.body_bytes:
                raise Refusal(413, "too_large", large)
            async with asyncio.timeout(limits.head_seconds):
                async for part in request.stream():
                    self._bytes += len(part)
                    body += part
                    if len(body) > limits.body_bytes:
                        raise Refusal(413, "too_large", large)
                    if self._bytes > limits.bodies_bytes:
                        sentence = "The bodies of all requests are too large together."
                        raise Refusal(503, "too_busy", sentence, retry_after=1.0)
        except TimeoutError:
            sentence = f"The body did not come within {limits.head_seconds:g} seconds."
            raise Refusal(408, "too_slow", sentence) from None
        except ClientDisconnect:
            raise Refusal(499, "gone", "The client went away while it sent its body.") from None
        except Refusal as refusal:
            self.link.reject(key, refusal.message)
            raise
        else:
            yield bytes(body)
        finally:
            self._bytes -= len(body)
            self._asking.remove(key)

    async def _models(self, request: Request, line: Line, send: Send) -> Response:
        line.key, line.agent = key_of(request), agent_of(request)
        name = request.path_params.get("id", "")
        answered = await self._told(wire.Models(0, line.key, name))
        anthropic = "anthropic-version" in request.headers
        rows = {model.id: _anthropic(model) if anthropic else _openai(model) for model in answered.models}
        if name:
            return JSONResponse(rows[name])
        if not anthropic:
            return JSONResponse({"object": "list", "data": [*rows.values()]})
        ends = {"first_id": next(iter(rows), None), "last_id": next(reversed(rows), None)}
        return JSONResponse({"data": [*rows.values()], "has_more": False, **ends})

    async def _told(self, asked: wire.Models | wire.Figures) -> Any:
        async with self.link.ask(asked) as messages:
            answered = await next_of(messages, self.limits.seconds)
        if answered is None:
            raise _too_long(self.limits.seconds)
        return answered

    async def _health(self, request: Request, line: Line, send: Send) -> Response:
        if not self.link.up:
            raise gone()
        return JSONResponse({"status": "ok"})

    async def _metrics(self, request: Request, line: Line, send: Send) -> Response:
        if not is_local(request):
            raise Refusal(403, "not_here", "Figures of all tenants are told on this machine alone: read them there.")
        figures = await self._told(wire.Figures(0))
        return PlainTextResponse(
            metrics.text([*self.requests.rows(self.under_way), *figures.rows]), media_type=metrics.TYPE
        )

    async def _openapi(self, request: Request, line: Line, send: Send) -> Response:
        return JSONResponse(document())

    async def _no_route(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        sentence = f"There is nothing at {request.method} {request.url.path}; /openapi.json lists what there is."
        refusal = Refusal(status, "unknown_path" if status == 404 else "wrong_method", sentence)
        form = errors.form_of(request.url.path, request.headers)
        return JSONResponse(errors.body(refusal, form), status, errors.headers(refusal))


async def refuse(send: Send, request: Request, refusal: Refusal, headers: dict[str, str] | None = None) -> None:
    """Send a refusal in the client's format."""
    body = errors.body(refusal, errors.form_of(request.url.path, request.headers))
    more = {"Connection": "close"} if refusal.status == 408 else {}
    await send_json(send, refusal.status, body, {**errors.headers(refusal), **more, **(headers or {})})


def explained(error: Exception) -> Refusal:
    """The error as a refusal; unexpected ones are traced."""
    if isinstance(error, Refusal):
        return error
    traceback.print_exception(error, file=sys.stderr)
    return Refusal(500, "internal", "The gateway failed at this request; its standard error has why.")


def _openai(model: wire.Model) -> dict[str, Any]:
    length = {"max_model_len": model.context} if model.context else {}
    owner, parent = model.owner or "marlaas", model.parent or None
    row = {"id": model.id, "object": "model", "created": model.created, "owned_by": owner, "parent": parent}
    return row | length


def _anthropic(model: wire.Model) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": model.id, "display_name": model.id, "created_at": created}


# Nothing is sent before the engine's first message: a refusal needs its own status.

SILENCE = 15.0
OPENING = 30.0
"""Seconds until a stream begins without a message: longer than workers' start (a refusal needs its status), shorter
than reverse proxies wait."""
AT_ONCE = 256


async def answer(link: Link, exchange: Exchange, send: Send, line: Line, seconds: float) -> Answered | None:
    """Send the answer; None if a stream ends with a refusal. Raises ``Refusal`` before anything is sent."""
    until = asyncio.get_running_loop().time() + seconds
    async with link.ask(exchange.asked) as messages:
        stream = exchange.asked.stream
        message = await _before(until, seconds, next_of(messages, OPENING if stream else None))
        if not stream:
            whole = _noted(message, line)
            line.status = 200
            await send_json(send, 200, exchange.reply(whole), _notes((*exchange.asked.notes, *whole.notes)))
            return whole
        notes = _notes(exchange.asked.notes)
        await send({"type": "http.response.start", "status": 200, "headers": _raw({**HEADERS, **notes})})
        line.status = 200
        answered = None
        try:
            waiting = b"".join(exchange.opening(getattr(message, "prompt_tokens", 0)))
            while message is None or isinstance(message, Piece):
                waiting += ALIVE if message is None else exchange.more(message)
                for _ in range(min(messages.qsize(), AT_ONCE)):
                    message = await next_of(messages)
                    if not isinstance(message, Piece):
                        break
                    waiting += exchange.more(message)
                else:
                    await send({"type": "http.response.body", "body": waiting, "more_body": True})
                    waiting = b""
                    message = await _before(until, seconds, next_of(messages, SILENCE))
            answered = _noted(message, line)
            waiting += exchange.end(answered)
        except Refusal as refusal:
            line.error, line.status = refusal.code, refusal.status
            waiting = exchange.broken(refusal)
        await send({"type": "http.response.body", "body": waiting, "more_body": False})
        return answered


def _notes(notes: Sequence[str]) -> dict[str, str]:
    """What of a request had no effect, as a header: printable ASCII, since types of tools are a client's text."""
    text = "".join(each if " " <= each <= "~" else "?" for each in "; ".join(notes))
    return {"X-Marlaas-Ignored": text} if notes else {}


async def _before(until: float, seconds: float, work: Coroutine[Any, Any, Any]) -> Any:
    try:
        async with asyncio.timeout_at(until):
            return await work
    except TimeoutError:
        raise _too_long(seconds) from None


def _too_long(seconds: float) -> Refusal:
    return Refusal(504, "too_long", f"There was no whole answer within {seconds:g} seconds.")


def _noted(message: object, line: Line) -> Answered:
    if not isinstance(message, Answered) or not message.choices:
        raise Refusal(500, "no_answer", "The engine ended its answer without a choice.")
    for name in ("model", "prompt_tokens", "completion_tokens", "cached_tokens"):
        setattr(line, name, getattr(message, name))
    return message


async def while_there(work: Coroutine[Any, Any, Any], receive: Receive, seconds: float) -> Any:
    """Work until the client is gone (``Refusal`` 499) or reads too slowly (504)."""
    working, leaving = asyncio.ensure_future(work), asyncio.ensure_future(_gone(receive))
    try:
        await asyncio.wait((working, leaving), timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            return working.result()
        if leaving.done():
            raise Refusal(499, "gone", "The client went away.")
        raise Refusal(504, "too_slow", f"The answer was not read within {seconds:g} seconds.")
    finally:
        working.cancel()
        leaving.cancel()
        await asyncio.gather(working, leaving, return_exceptions=True)


async def send_json(send: Send, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    """Send a whole answer."""
    encoded = msgspec.json.encode(body)
    head = {"Content-Type": "application/json", "Content-Length": str(len(encoded)), **(headers or {})}
    await send({"type": "http.response.start", "status": status, "headers": _raw(head)})
    await send({"type": "http.response.body", "body": encoded, "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]


AGENT = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}|")
LONGEST_KEY = 512
PROXIES = {"forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip", "via"}
"""Other reverse proxies that keep the host name or use a local address must block ``/metrics`` themselves."""


def key_of(request: Request) -> str:
    """Raises ``Refusal`` without a key."""
    scheme, _, bearer = request.headers.get("authorization", "").partition(" ")
    key = bearer.strip() if scheme.lower() == "bearer" else ""
    key = key or request.headers.get("x-api-key", "").strip()
    if not 0 < len(key) <= LONGEST_KEY:
        sentence = "A key is needed: send it as `Authorization: Bearer KEY` or `x-api-key: KEY`."
        raise Refusal(401, "no_key", sentence)
    return key


def agent_of(request: Request) -> str:
    """The path's agent, or empty. Raises ``Refusal``."""
    agent = str(request.path_params.get("agent", ""))
    if not AGENT.fullmatch(agent):
        sentence = "An agent's name has letters, digits, dots, dashes and underscores, at most 64."
        raise Refusal(404, "unknown_path", sentence)
    return agent


def is_local(request: Request) -> bool:
    """True for a local request without a reverse proxy or a web page's name: both use another host name."""
    if request.client is None or PROXIES & set(request.headers.keys()):
        return False
    try:
        asked = urlsplit(f"//{request.headers.get('host', '')}").hostname or ""
        hosts = request.client.host, "127.0.0.1" if asked == "localhost" else asked
        return all(ipaddress.ip_address(host).is_loopback for host in hosts)
    except ValueError:
        return False


PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Serve until the engine is gone."""
    link, listen, told = arguments
    limits = msgspec.json.decode(told, type=Limits)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the engine handles Ctrl-C and ends its processes in order
    if sys.platform == "linux":  # elsewhere the closed link ends it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    files = limits.files if hard == resource.RLIM_INFINITY else min(limits.files, hard)
    if resource.RLIM_INFINITY != soft < files:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)  # our own log is enough
    asyncio.run(serve(socket.socket(fileno=int(link)), socket.socket(fileno=int(listen)), limits))


async def serve(link: socket.socket, listen: socket.socket, limits: Limits) -> None:
    """Serve until the link is closed."""

    class Server(uvicorn.Server):
        """uvicorn's server without signal handlers."""

        @contextmanager
        def capture_signals(self) -> Iterator[None]:
            yield

    client = Link()
    gateway = Gateway(client, limits)
    server = Server(config_of(gateway.application, limits, gateway.crowded))
    linked = asyncio.create_task(client.serve(link))
    serving = asyncio.create_task(server.serve(sockets=[listen]))
    try:
        await asyncio.wait((linked, serving), return_when=asyncio.FIRST_COMPLETED)
    finally:
        server.should_exit = True
        await serving
        linked.cancel()
        with suppress(asyncio.CancelledError):
            await linked
        gateway.log.close()


# uvicorn's own protocol waits forever for the first head, and refuses in plain text without a time for another try.

Application = Callable[..., Awaitable[None]]


def patient(limits: Limits, crowded: Application) -> type[H11Protocol]:
    """``crowded`` answers surplus connections."""

    class Patient(H11Protocol):
        """Closes idle connections without a request."""

        _patience: asyncio.TimerHandle | None = None

        def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
            super().connection_made(transport)
            if len(self.connections) > limits.most_connections:
                transport.abort()
            elif len(self.connections) > limits.connections:
                self.app = crowded
            self._wait()

        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            if self._busy or self._patience is None:
                self._wait()

        def connection_lost(self, exc: Exception | None) -> None:
            super().connection_lost(exc)
            if self._patience is not None:
                self._patience.cancel()

        def send_400_response(self, msg: str) -> None:
            if self._busy:  # its body is wrong after a valid head: end the answer
                self.cycle.disconnected = True
            if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
                super().send_400_response(msg)
            else:  # an answer has begun
                self.transport.abort()

        @property
        def _busy(self) -> bool:
            return self.cycle is not None and not self.cycle.response_complete

        def _wait(self) -> None:
            if self._patience is not None:
                self._patience.cancel()
            self._patience = None if self._busy else self.loop.call_later(limits.head_seconds, self.transport.abort)

    return Patient


def config_of(application: Any, limits: Limits, crowded: Application) -> Any:
    """uvicorn's settings."""
    return uvicorn.Config(
        application,
        http=patient(limits, crowded),
        loop="asyncio",
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=max(5, int(limits.head_seconds)),
        timeout_graceful_shutdown=1,
    )


if __name__ == "__main__":
    main(sys.argv[1:])
