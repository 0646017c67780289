"""The border at which programs and clients ask: bytes on the port of a real gateway, with the engine's end behind it.

Keys are looked up in a store, names of models in the versions of two tenants, conversations go through the shipped
base's template; only the sampler has no model. All of it is started when the first input is to be sent, and ends with
the process.
"""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import logging
import socket
import tempfile
import threading
from collections.abc import Iterator, Sequence
from functools import lru_cache
from http.client import HTTPException, HTTPResponse
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote

from marlaas.engine.gateway.http.exchange import form_of
from marlaas.engine.gateway.http.main import serve
from marlaas.engine.gateway.keys import new_key
from marlaas.engine.gateway.limits import Limits
from marlaas.engine.gateway.link import Desk, Link
from marlaas.engine.store.submissions import add_key

from ..engine.gateway.clientele import Clientele
from .borders import FOLDER, Border

_PATIENCE = 60.0
"""Seconds after which a connection counts as one that never ends."""
_TRIES = 20
"""A machine that is busy may let the patience with a head end before it has read one."""
KEY = b"@key@"
"""Stands for the key of a client that is let in."""
TENANTS = ("lab", "club")
OWN = {"lab": ("tiny", "1@", "2/", "prod", "only-lab"), "club": ("tiny", "3@", "prod", "only-club")}
"""How the names begin of all that a tenant may be answered by."""
_LAST = b"GET /healthz HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"


class Door:
    """A gateway, and the engine's end of its link, on the loop of a thread of their own."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.faults: list[str] = []
        """What went wrong and was not told to a client: left to the loop, or to uvicorn, or in the engine's log."""
        self.loop.set_exception_handler(lambda _, context: self.faults.append(repr(context)))
        logger = logging.getLogger("uvicorn.error")
        logger.handlers, logger.propagate = [_Faults(self.faults)], False
        threading.Thread(target=self.loop.run_forever, daemon=True).start()
        self.keys: dict[str, str] = {}
        asyncio.run_coroutine_threadsafe(self._start(), self.loop).result()

    async def _start(self) -> None:
        clientele = Clientele(Path(tempfile.mkdtemp(dir=FOLDER)))
        served = clientele.store.served
        for tenant, name in zip(TENANTS, ("1@1", "3@0"), strict=True):
            served.give(tenant, "prod", clientele.version(tenant, name).id)
            served.give(tenant, f"only-{tenant}", clientele.version(tenant, name).id)
            made = new_key(tenant)
            add_key(clientele.home.database, tenant, "", made.digest, made.prefix, ("chat",))
            self.keys[tenant] = made.key
        serving, _ = clientele.serving()
        desk = Desk(clientele.store.api.key, lambda uses: None, self._log)
        desk.open, desk.serving = True, serving.answerer
        ours, theirs = socket.socketpair()
        listening = socket.create_server(("127.0.0.1", 0))
        self.port = listening.getsockname()[1]
        log = str(clientele.folder / "api.log")
        limits = Limits(body_bytes=1 << 20, seconds=30.0, head_seconds=0.5, log_prompts=True, log=log)
        self.tasks = [asyncio.create_task(one) for one in (Link(desk).serve(ours), serve(theirs, listening, limits))]

    def _log(self, kind: str, text: str, level: str) -> None:
        if level == "error":
            self.faults.append(text)

    def ask(self, request: bytes) -> bytes:
        """All that is answered until the connection is closed."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=_PATIENCE) as connection:
            answer = b""
            with contextlib.suppress(ConnectionError):  # it is refused while it is sent
                connection.sendall(request)
            with contextlib.suppress(ConnectionError):
                while part := connection.recv(1 << 16):
                    answer += part
            return answer

    def post(self, path: str, body: bytes, tenant: str = TENANTS[0], more: str = "") -> Answer:
        """The answer to a whole request."""
        head = f"POST {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n{more}Content-Length: {len(body)}\r\n"
        return self.one(f"{head}Authorization: Bearer {self.keys[tenant]}\r\n\r\n".encode() + body, path)

    def get(self, path: str, tenant: str = TENANTS[0]) -> Answer:
        """The same without a body."""
        head = f"GET {path} HTTP/1.1\r\nHost: x\r\nConnection: close\r\n"
        return self.one(f"{head}Authorization: Bearer {self.keys[tenant]}\r\n\r\n".encode(), path)

    def one(self, request: bytes, path: str) -> Answer:
        """The answer to a request that has one."""
        for _ in range(_TRIES):
            if found := list(answers(self.ask(request))):
                (answer,) = found
                answer.check(path)
                return answer
        raise AssertionError(f"nothing is answered to {request[:300]!r}")

    def goes_on(self) -> None:
        """The next request is answered as if nothing had been, and nothing went wrong unheard."""
        models = json.loads(self.get("/v1/models").body)["data"]
        assert all(model["id"].startswith(OWN[TENANTS[0]]) for model in models)
        assert self.faults == []


class _Faults(logging.Handler):
    """Keeps the errors of a logger."""

    def __init__(self, faults: list[str]) -> None:
        super().__init__(logging.ERROR)
        self._faults = faults

    def emit(self, record: logging.LogRecord) -> None:
        self._faults.append(record.getMessage())


class Answer:
    """One answer, as a client of HTTP reads it. Raises ``HTTPException`` where it is none, or has no end."""

    def __init__(self, stream: io.BytesIO) -> None:
        response = HTTPResponse(cast(socket.socket, _Replay(stream)))
        response.begin()
        self.status = response.status
        self.kind = response.headers.get_content_type()
        self.body = response.read()

    def check(self, path: str | None) -> None:
        """It says what it should in its interface; with a path also in which one."""
        assert self.status != 500 and self.status < 600, self.body[:300]
        if self.kind == "text/event-stream":
            self._check_events(path)
        elif self.kind == "application/json":
            said = json.loads(self.body, parse_constant=_no_number)
            if self.status >= 400:
                check_error(said, path)
        else:
            # figures, or uvicorn's answer to what is no HTTP
            assert self.status in (200, 400) and self.kind == "text/plain", (self.status, self.kind)

    def _check_events(self, path: str | None) -> None:
        events = [event for event in self.body.decode().split("\n\n") if event and not event.startswith(":")]
        for event in events:
            data = event.rpartition("data: ")[2]
            said = {} if data == "[DONE]" else json.loads(data, parse_constant=_no_number)
            if "error" in said and said.get("error") is not None:
                check_error(said, path)
                assert said["error"].get("code") not in ("internal", "internal_error"), said
        assert events, "a stream says something"


class _Replay:
    """Stands for a socket of which all was read."""

    def __init__(self, stream: io.BytesIO) -> None:
        self._stream = stream

    def makefile(self, mode: str) -> io.BytesIO:
        return self._stream


class _Unclosed(io.BytesIO):
    """Answers follow each other: the first one's reader leaves it open."""

    def close(self) -> None:
        pass


def _no_number(name: str) -> Any:
    raise AssertionError(f"{name} is no JSON")


def answers(raw: bytes) -> Iterator[Answer]:
    """All answers on a connection, one after the other."""
    stream = _Unclosed(raw)
    while stream.tell() < len(raw):
        try:
            yield Answer(stream)
        except HTTPException as error:
            raise AssertionError(f"no answer of HTTP: {error!r} in {raw[-300:]!r}") from error


def check_error(said: Any, path: str | None) -> None:
    """An error of OpenAI's form, or of Anthropic's; with a path of that one's interface."""
    form = "anthropic" if said.get("type") == "error" else "openai"  # responses differ in the names of parameters alone
    assert path is None or (form == "anthropic") == (form_of(path, {}) == "anthropic"), said
    error = said["error"]
    assert isinstance(error["message"], str) and error["message"] and isinstance(error["type"], str), said
    assert form == "anthropic" or {"param", "code"} <= set(error), said
    assert "Traceback" not in error["message"] and len(error["message"]) < 100_000


@lru_cache(1)
def door() -> Door:
    """One for all inputs."""
    return Door()


def heads(data: bytes) -> None:
    """Requests on a connection, with a sound one behind them: each is answered, or the connection ends."""
    raw = door().ask(data.replace(KEY, door().keys[TENANTS[0]].encode()) + _LAST)
    for answer in answers(raw):
        answer.check(None)
    door().goes_on()


def bodies(path: str) -> Any:
    """A check of bodies for an interface: each is answered, or refused in the form of that interface."""

    def check(data: bytes) -> None:
        door().post(path, data)
        door().goes_on()

    return check


def names(data: bytes) -> None:
    """Names of models, asked for by both tenants, with one mark of retries: each gets what is its own, or nothing."""
    name = data.decode("utf-8", "replace")
    for tenant in (*TENANTS, TENANTS[0]):
        body = json.dumps({"model": name, "prompt": [5, 6], "max_tokens": 2, "seed": 1}).encode()
        for answer in (
            door().post(COMPLETIONS, body, tenant, "Idempotency-Key: same\r\n"),
            door().get(f"/v1/models/{quote(name, safe='')}", tenant),
        ):
            said = json.loads(answer.body)
            if answer.status == 200:
                if "model" in said:
                    assert said["model"].startswith(OWN[tenant]), (tenant, name, said)
                else:  # a model is told by the name that it was asked for by; without a name, all are
                    owners = {row["owned_by"] for row in said.get("data", [said])}
                    assert owners <= {tenant, "marlaas"}, (tenant, name, said)
            else:
                assert answer.status in (400, 404, 405), said
                others = ("only-club", "secret-sums") if tenant == "lab" else ("only-lab", "player", "judge")
                assert all(one in name or one not in said["error"]["message"] for one in others), (tenant, name, said)
    assert door().faults == []


def _chat(**more: Any) -> bytes:
    said = [{"role": "user", "content": "17+25="}]
    return json.dumps({"model": "1@best", "messages": said, "max_tokens": 4, "seed": 1, **more}).encode()


_SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
_FUNCTION = {"name": "add", "description": "Adds.", "parameters": _SCHEMA}
_TALK = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": [{"type": "text", "text": "hi"}]},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "2"},
]
_BLOCKS = [
    {"role": "user", "content": "hi"},
    {
        "role": "assistant",
        "content": [
            {"type": "thinking", "thinking": "hm", "signature": ""},
            {"type": "tool_use", "id": "t1", "name": "add", "input": {"a": 1}},
        ],
    },
    {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1", "content": "2"}]},
]
_ITEMS = [
    {"role": "user", "content": "hi"},
    {"type": "function_call", "call_id": "f1", "name": "add", "arguments": '{"a": 1}'},
    {"type": "function_call_output", "call_id": "f1", "output": "2"},
]
_TOOLS = [{"type": "function", "function": _FUNCTION}]
_FORM = {"type": "json_schema", "json_schema": {"name": "x", "schema": _SCHEMA}}
_FLAT = [{"type": "function", **_FUNCTION}]
_FEW = {"max_output_tokens": 4}
_SHORT = {"model": "1@1", "max_tokens": 3, "seed": 2}
BODIES: dict[str, Sequence[bytes]] = {
    CHAT: [
        _chat(stream=True, stream_options={"include_usage": True}, logprobs=True, top_logprobs=2),
        _chat(messages=_TALK, tools=_TOOLS, tool_choice="auto", n=2, stop=["x"]),
        _chat(tools=_TOOLS, tool_choice={"type": "function", "function": {"name": "add"}}),
        _chat(response_format=_FORM, reasoning_effort="none", chat_template_kwargs={"enable_thinking": False}),
        _chat(temperature=0.5, top_p=0.9, top_k=3, min_p=0.1, presence_penalty=1, frequency_penalty=-1),
    ],
    COMPLETIONS: [
        json.dumps({**_SHORT, "prompt": "12+", "stream": True, "logprobs": 1, "echo": True}).encode(),
        json.dumps({**_SHORT, "prompt": [[5, 6, 7], [8, 9]], "n": 2, "logprobs": 1}).encode(),
        json.dumps({**_SHORT, "prompt": ["a", "b"], "stop": "x", "best_of": 1, "suffix": None}).encode(),
    ],
    RESPONSES: [
        json.dumps({**_FEW, "model": "prod", "input": "hi", "stream": True}).encode(),
        json.dumps({**_FEW, "model": "tiny", "input": _ITEMS, "instructions": "Be.", "tools": _FLAT}).encode(),
        json.dumps({**_FEW, "model": "1", "input": "hi", "text": {"format": {**_FORM, "schema": _SCHEMA}}}).encode(),
    ],
    MESSAGES: [
        json.dumps({**_SHORT, "messages": _BLOCKS, "system": "Be brief.", "stream": True}).encode(),
        json.dumps({**_SHORT, "messages": _BLOCKS, "tools": [{"name": "add", "input_schema": _SCHEMA}]}).encode(),
        json.dumps({**_SHORT, "messages": _BLOCKS[:1], "stop_sequences": ["x"], "temperature": 0.5}).encode(),
    ],
}
_JSON_WORDS = [
    *(b'"model":', b'"messages":', b'"role":"tool"', b'"content":null', b'"stream":true', b'"n":64', b'"max_tokens":0'),
    *(b'"tool_choice":"required"', b'"logprobs":true', b'"type":"image"', b'"echo":true', b'"input":[]', b'"seed":-1'),
    *(b"null", b"true", b"[]", b"{}", b'""', b"1e308", b"-0.0", b"9007199254740993", b"18446744073709551616"),
    *(
        b'"\\ud83d"',
        b'"\\u0000"',
        b"[[",
        b"]]",
        b'{"a":',
        b",",
        b":",
        b'"',
        b'"3@1"',
        b'"<tool_call>"',
        b'"<|im_end|>"',
    ),
]
_KEYED = b"Host: x\r\nAuthorization: Bearer " + KEY + b"\r\n"
_BODY = BODIES[CHAT][0]
_HEADS = [
    b"GET /v1/models HTTP/1.1\r\n" + _KEYED + b"\r\n",
    b"GET /v1/models/1@best HTTP/1.1\r\nanthropic-version: 1\r\n" + _KEYED + b"\r\n",
    b"GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\nGET /openapi.json HTTP/1.0\r\n\r\n",
    b"POST /v1/chat/completions HTTP/1.1\r\n" + _KEYED + b"Content-Length: %d\r\n\r\n" % len(_BODY) + _BODY,
    b"POST /e/solver/v1/messages HTTP/1.1\r\n" + _KEYED + b"Content-Length: 2\r\nExpect: 100-continue\r\n\r\n{}",
    b"POST /v1/completions HTTP/1.1\r\n" + _KEYED + b"Transfer-Encoding: chunked\r\n\r\n5\r\n{}   \r\n0\r\n\r\n",
    b"POST /v1/responses HTTP/1.1\r\nHost: x\r\nx-api-key: " + KEY + b"\r\nx-stainless-retry-count: 1\r\n\r\n",
]
_HEAD_WORDS = [
    *(
        b"\r\n",
        b"\r\n\r\n",
        b"Host: ",
        b"Content-Length: ",
        b"Content-Length: 5\r\n",
        b"Transfer-Encoding: chunked\r\n",
    ),
    *(b"Content-Encoding: gzip\r\n", b"Connection: close\r\n", b"Upgrade: websocket\r\nConnection: Upgrade\r\n"),
    *(b"Idempotency-Key: a\r\n", b"anthropic-version: x\r\n", b"Forwarded: x\r\n", b"Expect: 100-continue\r\n"),
    *(b"POST ", b"GET ", b"PUT ", b"OPTIONS * ", b"HTTP/1.0", b"HTTP/2.0", b"//", b"%00", b"%2e%2e/", b"?a=b", b"#"),
    *(b"/e/", b"/e//", b"/healthz", b"ffffffff\r\n", b"0\r\n\r\n", KEY, b"Bearer ", b"\x80", b":", b"1"),
]
_NAMES = [
    *(
        b"1@best",
        b"3@1",
        b"3@newest",
        b"2/player@1",
        b"2/judge",
        b"prod",
        b"only-club",
        b"only-lab",
        b"club/secret-sums",
    ),
    *(b"lab/sums@1", b"secret-sums@best", b"t3-policy-v1", b"t1-policy-v3", b"tiny:3@0", b"base", b"clients/3@1"),
]
_NAME_WORDS = [
    *(b"1", b"2", b"3", b"4", b"@", b"/", b":", b"best", b"newest", b"last", b"player", b"policy", b"lab", b"club"),
    *(b"../", b"%", b"_", b"'", b" ", b"*", b"tiny:", b"base:", b"\xd9\xa3", b"-1", b"sums", b"only-", b"LAB"),
]
GATEWAY = (
    Border("gateway", _HEADS, _HEAD_WORDS, heads),
    *(
        Border(f"gateway {path.removeprefix('/v1/').replace('/', ' ')}", samples, _JSON_WORDS, bodies(path))
        for path, samples in BODIES.items()
    ),
    Border("gateway names", _NAMES, _NAME_WORDS, names),
)
