"""From a parsed request to its answer: asks the engine, and sends the answer, whole or as a stream.

A client that leaves cancels its request. Nothing is sent before the engine's first message, so that a refusal has its
own status.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, MutableMapping
from typing import Any

import msgspec

from ...wire import Answered, Piece, Refusal
from . import exchange as sse
from .exchange import Exchange
from .link import Call, Link
from .logs import Line

Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
SILENCE = 15.0
OPENING = 30.0
"""Seconds after which a stream begins without a message of the engine: longer than the wait for starting workers, so
that their refusal has a status; shorter than reverse proxies wait for a head.
"""
AT_ONCE = 256


async def answer(link: Link, exchange: Exchange, send: Send, line: Line, seconds: float) -> Answered | None:
    """Ask, and send the answer; None if a stream ends with a refusal. Raises ``Refusal`` before anything is sent."""
    async with await link.ask(exchange.asked, seconds) as call:
        if exchange.asked.stream:
            return await _stream(call, exchange, send, line)
        answered = _noted(await call.next(), line)
        line.status = 200
        await send_json(send, 200, exchange.reply(answered))
        return answered


async def _stream(call: Call, exchange: Exchange, send: Send, line: Line) -> Answered | None:
    message = await call.next(OPENING)
    await send({"type": "http.response.start", "status": 200, "headers": _raw(sse.HEADERS)})
    line.status = 200
    answered = None
    try:
        waiting = sse.encode(exchange.opening())
        while True:
            messages = 0
            while isinstance(message, Piece):
                waiting += sse.encode(exchange.piece(message))
                messages += 1
                message = await call.next() if call.unread and messages < AT_ONCE else None
            if call.finished:
                break
            if waiting:
                await send({"type": "http.response.body", "body": waiting, "more_body": True})
            message = await call.next(SILENCE)
            waiting = b"" if message is not None else sse.ALIVE
        answered = _noted(message, line)
        for choice in answered.choices:
            waiting += sse.encode(exchange.choice(choice))
        waiting += sse.encode(exchange.closing(answered))
    except Refusal as refusal:
        line.error, line.status = refusal.code, refusal.status
        waiting = sse.encode(exchange.broken(refusal))
    await send({"type": "http.response.body", "body": waiting, "more_body": False})
    return answered


def _noted(message: object, line: Line) -> Answered:
    if not isinstance(message, Answered) or not message.choices:
        raise Refusal(500, "no_answer", "The engine ended its answer without a choice.")
    line.model, line.prompt_tokens, line.completion_tokens = (
        message.model,
        message.prompt_tokens,
        message.completion_tokens,
    )
    line.cached_tokens = message.cached_tokens
    return message


async def while_there(work: Coroutine[Any, Any, Any], receive: Receive, seconds: float) -> Any:
    """Do the work until the client has gone (``Refusal`` of 499) or reads too slowly (504)."""
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
        await asyncio.wait((working, leaving))
        if not working.cancelled():
            working.exception()  # raised above, or nobody is there to get it


async def send_json(send: Send, status: int, body: Any, headers: dict[str, str] | None = None) -> None:
    """Send a whole answer."""
    encoded = msgspec.json.encode(body)
    told = {"Content-Type": "application/json", "Content-Length": str(len(encoded)), **(headers or {})}
    await send({"type": "http.response.start", "status": status, "headers": _raw(told)})
    await send({"type": "http.response.body", "body": encoded, "more_body": False})


async def _gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _raw(headers: dict[str, str]) -> list[tuple[bytes, bytes]]:
    return [(name.lower().encode(), value.encode("latin-1")) for name, value in headers.items()]
