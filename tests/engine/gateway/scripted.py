"""A real gateway on loopback, in this process, with an engine at the other end of its link that answers by a script."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import pytest

from marlaas.engine import wire
from marlaas.engine.gateway.http.exchange import Exchange
from marlaas.engine.gateway.http.main import serve
from marlaas.engine.gateway.limits import Limits
from marlaas.engine.wire import Refusal

KEY = "tml-acme-0123456789"
Script = Callable[["Engine", Any], Coroutine[Any, Any, None]]


class Engine:
    """The scripted end: what was asked, and how it is answered."""

    def __init__(self, script: Script) -> None:
        self.script = script
        self.asked: list[Any] = []
        self.cancelled: asyncio.Queue[int] = asyncio.Queue()
        self.begun: asyncio.Queue[Any] = asyncio.Queue()
        self._writer: asyncio.StreamWriter | None = None
        self._running: set[asyncio.Task[None]] = set()

    async def serve(self, end: socket.socket) -> None:
        reader, self._writer = await asyncio.open_connection(sock=end)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                body = await reader.readexactly(wire.length(await reader.readexactly(4)))
                request = wire.request(body)
                if isinstance(request, wire.Cancel):
                    self.cancelled.put_nowait(request.id)
                    continue
                self.asked.append(request)
                self.begun.put_nowait(request)
                task = asyncio.create_task(self.script(self, request))
                self._running.add(task)
                task.add_done_callback(self._running.discard)

    def say(self, *messages: wire.Response) -> None:
        assert self._writer is not None
        for message in messages:
            self._writer.write(wire.frame(message))

    def leave(self) -> None:
        """End, as an engine that dies."""
        assert self._writer is not None
        self._writer.close()

    async def close(self) -> None:
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


class Client:
    """An HTTP client of one gateway."""

    def __init__(self, session: aiohttp.ClientSession, engine: Engine, port: int) -> None:
        self.session, self.engine, self.port = session, engine, port
        self.headers = {"Authorization": f"Bearer {KEY}"}

    async def post(self, path: str, body: Any, **headers: str) -> tuple[int, Any]:
        """Status and JSON of an answer."""
        status, answered, _ = await self.posted(path, body, **headers)
        return status, answered

    async def posted(self, path: str, body: Any, **headers: str) -> tuple[int, Any, dict[str, str]]:
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        told = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.post(self.url(path), data=data, headers=told) as response:
            return response.status, json.loads(await response.read()), dict(response.headers)

    async def get(self, path: str, **headers: str) -> tuple[int, str]:
        told = self.headers | {name.replace("_", "-"): value for name, value in headers.items()}
        async with self.session.get(self.url(path), headers=told) as response:
            return response.status, await response.text()

    async def stream(self, path: str, body: Any) -> list[tuple[str, Any]]:
        """All events of a stream: names and data; the last data of OpenAI's is None."""
        async with self.session.post(self.url(path), json=body, headers=self.headers) as response:
            assert response.status == 200, await response.text()
            assert response.content_type == "text/event-stream"
            return events(await response.text())

    def url(self, path: str) -> str:
        return f"http://127.0.0.1:{self.port}{path}"


def refusal_of(interface: Callable[[bytes, str], Exchange], body: Any) -> Refusal:
    """How an interface refuses a body."""
    with pytest.raises(Refusal) as caught:
        interface(body if isinstance(body, bytes) else json.dumps(body).encode(), KEY)
    assert caught.value.status == 400
    return caught.value


def events(text: str) -> list[tuple[str, Any]]:
    found = []
    for block in text.split("\n\n"):
        lines = [line for line in block.split("\n") if line and not line.startswith(":")]
        fields = dict(line.split(": ", 1) for line in lines)
        if fields:
            data = fields["data"]
            found.append((fields.get("event", ""), None if data == "[DONE]" else json.loads(data)))
    return found


@asynccontextmanager
async def gateway(script: Script, limits: Limits | None = None) -> AsyncIterator[Client]:
    """A gateway that serves until the context ends."""
    ours, theirs = socket.socketpair()
    listen = socket.create_server(("127.0.0.1", 0))
    port = listen.getsockname()[1]
    engine = Engine(script)
    answering = asyncio.create_task(engine.serve(ours))
    serving = asyncio.create_task(serve(theirs, listen, limits or Limits()))
    connector = aiohttp.TCPConnector(limit=0)
    try:
        async with aiohttp.ClientSession(connector=connector) as session:
            yield Client(session, engine, port)
    finally:
        await engine.close()
        if engine._writer is not None:
            engine.leave()
        await asyncio.gather(answering, serving)


async def echo(engine: Engine, request: Any) -> None:
    """Answers each choice with a thought, and as text what was asked, in two pieces where it is streamed."""
    if isinstance(request, wire.Models):
        models = (wire.Model("base", context=2048), wire.Model("17@best", parent="base", created=1, owner="acme"))
        named = tuple(model for model in models if request.name in ("", model.id))
        unknown = wire.Refused(request.id, 404, "model_not_found", f"There is no model {request.name!r}.", "model")
        engine.say(wire.ModelList(request.id, named) if named else unknown)
        return
    if isinstance(request, wire.Figures):
        engine.say(wire.FigureTable(request.id, (("queue_requests", {"tenant": 'a"b'}, 3.0),)))
        return
    prompts = request.prompts if isinstance(request, wire.Complete) else (request.messages[-1].content,)
    count = len(prompts) * request.wishes.n
    tokens = (
        wire.Token(5, "he", None if isinstance(request, wire.Complete) and request.echo else -0.5, ((5, "he", -0.5),)),
        wire.Token(6, "llo", -1.25, ((7, "y", -0.25), (6, "llo", -1.25))),
    )
    told = tokens if request.wishes.logprobs else ()
    for index in range(count if request.stream else 0):
        engine.say(wire.Piece(request.id, index, thinking="hm", prompt_tokens=11))
        engine.say(wire.Piece(request.id, index, text="he", tokens=told[:1]))
    choices = tuple(wire.Choice(index, "hello", "stop", thinking="hm", tokens=told) for index in range(count))
    engine.say(wire.Answered(choices, "17@best", 11, 7 * count, 4, request.id))


async def tool(engine: Engine, request: Any) -> None:
    """Calls a tool, with a word before it."""
    call = wire.ToolCall("call_1", "add", '{"a": 1}')
    if request.stream:
        engine.say(wire.Piece(request.id, 0, text="Well"))
    choice = wire.Choice(0, "Well", "tool", tool_calls=(call,))
    engine.say(wire.Answered((choice,), "base", 3, 5, id=request.id))


async def silence(engine: Engine, request: Any) -> None:
    """Never answers."""


async def refusing(engine: Engine, request: Any) -> None:
    engine.say(wire.Refused(request.id, 429, "quota", "Your quota is used up.", "", 7.2))
