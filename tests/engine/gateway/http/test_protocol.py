"""Bytes that are no HTTP: refused as an interface refuses, and never a fault of the gateway's own."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from .scripted import KEY, Client, echo, gateway, silence

KEYED = f"Host: x\r\nAuthorization: Bearer {KEY}\r\n"
CHUNKED = f"POST {{path}} HTTP/1.1\r\n{KEYED}Transfer-Encoding: chunked\r\n\r\nno length\r\n"


@asynccontextmanager
async def faultless(script: Any = echo) -> AsyncIterator[Client]:
    """A gateway; whatever its event loop is left alone with fails the test, and so does one that answers no more."""
    faults: list[dict[str, Any]] = []
    asyncio.get_running_loop().set_exception_handler(lambda _, context: faults.append(context))
    async with gateway(script) as client:
        yield client
        assert (await client.get("/healthz"))[0] == 200
    assert not faults


async def said(client: Client, *sent: str) -> list[tuple[int, Any]]:
    """Status and JSON of all answers on one connection, on which this is sent piece by piece."""
    reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
    answers = b""
    with contextlib.suppress(ConnectionError):
        for part in sent:
            writer.write(part.encode("latin-1"))
            await writer.drain()
            if part is not sent[-1]:
                answers += await reader.readuntil(b"}")
        answers += await reader.read()
    writer.close()
    with contextlib.suppress(ConnectionError):
        await writer.wait_closed()
    found = []
    for answer in answers.split(b"HTTP/1.1 ")[1:]:
        head, _, body = answer.partition(b"\r\n\r\n")
        found.append((int(head[:3]), json.loads(body)))
    return found


@pytest.mark.parametrize("sent", ["GET /\n\r\n\r\n", "\x00\r\n\r\n", "x" * 100_000])
async def test_a_head_that_is_none(sent: str) -> None:
    async with faultless() as client:
        ((status, answer),) = await said(client, sent)
        assert (status, answer["error"]["code"]) == (400, "invalid_http")
        assert answer["error"]["type"] == "invalid_request_error"


@pytest.mark.parametrize(("path", "anthropic"), [("/v1/chat/completions", False), ("/v1/messages", True)])
async def test_a_body_that_breaks_off_into_nonsense(path: str, anthropic: bool) -> None:
    async with faultless(silence) as client:
        ((status, answer),) = await said(client, CHUNKED.format(path=path))
        assert status == 400 and "its body is broken" in answer["error"]["message"]
        assert (answer.get("type") == "error") == anthropic and not client.engine.asked


async def test_a_broken_body_behind_an_answer() -> None:
    """The request was refused by its head; what comes after that is not answered a second time."""
    async with faultless() as client:
        head = "POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n"
        answers = await said(client, head, "no length\r\n")
        assert [status for status, _ in answers] == [401]


async def test_a_second_request_that_is_none() -> None:
    async with faultless() as client:
        answers = await said(client, f"GET /healthz HTTP/1.1\r\n{KEYED}\r\nnonsense\r\n\r\n")
        assert [status for status, _ in answers] == [200, 400]


async def test_a_broken_body_where_none_is_read() -> None:
    async with faultless() as client:
        answers = await said(client, CHUNKED.format(path="/v1/models").replace("POST", "GET"))
        assert [status for status, _ in answers] == [400]
