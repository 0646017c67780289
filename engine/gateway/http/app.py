"""The routes: read a request, answer it in its interface, and log a line."""

from __future__ import annotations

import difflib
import sys
import traceback
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from functools import partial
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from ... import wire
from ...wire import Refusal
from ..limits import Limits
from . import exchange as errors, metrics, openapi
from .answering import Receive, Send, answer, send_json, while_there
from .anthropic import Messages
from .exchange import Exchange, Who
from .link import Link, gone
from .logs import Line, Log, shown_body
from .openai import ChatCompletions, Completions
from .requests import Load, agent_of, is_local, key_of, read
from .responses import Responses

INTERFACES: tuple[tuple[str, Callable[[bytes, Who], Exchange]], ...] = (
    ("/v1/chat/completions", ChatCompletions),
    ("/v1/completions", Completions),
    ("/v1/responses", Responses),
    ("/v1/messages", Messages),
)
AGENTS = "/e/{agent}"
"""Prefix of a route, for the calls of one agent of a program that has several."""
GRACE = 5.0
Handle = Callable[[Request, Line, Send], Awaitable[Response | None]]


class Gateway:
    """All routes and their shared state."""

    def __init__(self, link: Link, limits: Limits) -> None:
        self.link = link
        self.limits = limits
        self.log = Log(limits)
        self.load = Load(limits)
        self.requests = metrics.Requests()

    def application(self) -> Starlette:
        routes = [
            Endpoint(self, "/healthz", self._health),
            Endpoint(self, "/metrics", self._metrics),
            Endpoint(self, "/openapi.json", self._openapi),
        ]
        for prefix in ("", AGENTS):
            for path, make in INTERFACES:
                routes.append(Endpoint(self, path, partial(self._ask, make), prefix, "POST"))
            routes.append(Endpoint(self, "/v1/models", self._models, prefix))
            routes.append(Endpoint(self, "/v1/models/{id}", self._model, prefix))
        application = Starlette(routes=routes, exception_handlers={HTTPException: self._no_route})
        application.router.redirect_slashes = False
        return application

    async def crowded(self, scope: Any, receive: Receive, send: Send) -> None:
        sentence = f"There are {self.limits.connections} connections already; try again when one has been closed."
        refusal = Refusal(503, "too_many_connections", sentence, retry_after=1.0)
        await refuse(send, Request(scope), refusal, {"Connection": "close"})

    async def _ask(
        self, make: Callable[[bytes, Who], Exchange], request: Request, line: Line, send: Send
    ) -> Response | None:
        line.key, line.agent = key_of(request), agent_of(request)
        with self.load.body() as reading:
            body = await read(request, reading, self.limits)
            tries = request.headers.get("x-stainless-retry-count", "")
            retry = int(tries[:9]) if tries.isdecimal() else -1
            exchange = make(body, Who(line.key, line.agent, request.headers.get("idempotency-key", ""), retry))
            line.model, line.stream = exchange.asked.model, exchange.asked.stream
            if self.log.prompts:
                line.sent = shown_body(body)
            work = answer(self.link, exchange, send, line, self.limits.seconds)
            answered = await while_there(work, request.receive, self.limits.seconds + GRACE)
            if self.log.prompts and answered is not None:
                line.said = answered.choices
        return None

    async def _models(self, request: Request, line: Line, send: Send) -> Response:
        models = await self._named(request, line)
        if "anthropic-version" in request.headers:
            rows = [_anthropic(model) for model in models]
            first, last = (rows[0]["id"], rows[-1]["id"]) if rows else (None, None)
            return JSONResponse({"data": rows, "has_more": False, "first_id": first, "last_id": last})
        return JSONResponse({"object": "list", "data": [_openai(model) for model in models]})

    async def _model(self, request: Request, line: Line, send: Send) -> Response:
        name = request.path_params["id"]
        models = {model.id: model for model in await self._named(request, line)}
        if name not in models:
            near = difflib.get_close_matches(name, models, 1, 0.0)
            more = f" The nearest is {near[0]!r}." if near else ""
            raise Refusal(404, "model_not_found", f"There is no model {name!r}.{more}", "model")
        row = _anthropic if "anthropic-version" in request.headers else _openai
        return JSONResponse(row(models[name]))

    async def _named(self, request: Request, line: Line) -> tuple[wire.Model, ...]:
        line.key, line.agent = key_of(request), agent_of(request)
        async with await self.link.ask(wire.Models(0, line.key), self.limits.seconds) as call:
            answered = await call.next()
        return answered.models if isinstance(answered, wire.ModelList) else ()

    async def _health(self, request: Request, line: Line, send: Send) -> Response:
        if not self.link.up:
            raise gone()
        return JSONResponse({"status": "ok"})

    async def _metrics(self, request: Request, line: Line, send: Send) -> Response:
        if not is_local(request):
            raise Refusal(403, "not_here", "Figures of all tenants are told on this machine alone: read them there.")
        rows: list[metrics.Row] = [*self.requests.rows(self.load.requests)]
        async with await self.link.ask(wire.Figures(0), self.limits.seconds) as call:
            answered = await call.next()
        if isinstance(answered, wire.FigureTable):
            rows += answered.rows
        return PlainTextResponse(metrics.text(rows), media_type=metrics.TYPE)

    async def _openapi(self, request: Request, line: Line, send: Send) -> Response:
        return JSONResponse(openapi.document())

    async def _no_route(self, request: Request, error: Exception) -> Response:
        status = error.status_code if isinstance(error, HTTPException) else 500
        sentence = f"There is nothing at {request.method} {request.url.path}; /openapi.json lists what there is."
        refusal = Refusal(status, "unknown_path" if status == 404 else "wrong_method", sentence)
        form = errors.form_of(request.url.path, request.headers)
        return JSONResponse(errors.body(refusal, form), status, errors.headers(refusal))


class Endpoint(Route):
    """A route of the gateway."""

    def __init__(self, gateway: Gateway, name: str, handle: Handle, prefix: str = "", method: str = "GET") -> None:
        super().__init__(prefix + name.replace("{id}", "{id:path}"), self._serve, methods=[method])
        self.app = self._serve
        self._gateway, self._name, self._handle = gateway, name, handle

    async def _serve(self, scope: Any, receive: Receive, send: Send) -> None:
        request, gateway = Request(scope, receive), self._gateway
        line, began = gateway.log.begin(self._name)
        gateway.load.requests += 1
        try:
            response = await self._handle(request, line, send)
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
            gateway.load.requests -= 1
            gateway.log.end(line, began)
            gateway.requests.add(line.route, line.status, line.ms, line.prompt_tokens, line.completion_tokens)


async def refuse(send: Send, request: Request, refusal: Refusal, headers: dict[str, str] | None = None) -> None:
    """Send a refusal in the client's format."""
    form = errors.form_of(request.url.path, request.headers)
    more = {"Connection": "close"} if refusal.status == 408 else {}
    body = errors.body(refusal, form)
    await send_json(send, refusal.status, body, {**errors.headers(refusal), **more, **(headers or {})})


def explained(error: Exception) -> Refusal:
    """The error as a refusal; an unexpected one is traced to standard error."""
    if isinstance(error, Refusal):
        return error
    traceback.print_exception(error, file=sys.stderr)
    return Refusal(500, "internal", "The gateway failed at this request; its standard error has why.")


def _openai(model: wire.Model) -> dict[str, Any]:
    row: dict[str, Any] = {"id": model.id, "object": "model", "created": model.created}
    row["owned_by"] = model.owner or "marlaas"
    row["parent"] = model.parent or None
    if model.context:
        row["max_model_len"] = model.context
    return row


def _anthropic(model: wire.Model) -> dict[str, Any]:
    created = datetime.fromtimestamp(model.created, UTC).isoformat().replace("+00:00", "Z")
    return {"type": "model", "id": model.id, "display_name": model.id, "created_at": created}
