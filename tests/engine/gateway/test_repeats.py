"""A request that comes again: while the first is under way, after it, after a failure, and when nobody waits."""

from __future__ import annotations

import asyncio

import pytest

from marlaas.engine.gateway import link as module
from marlaas.engine.gateway.link import IdempotencyCache
from marlaas.engine.wire import Piece, Refusal

from .answering import Echo, chat


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


async def ask(
    repeats: IdempotencyCache,
    echo: Echo,
    once: str = "",
    number: int = 1,
    key: str = "k",
    text: str = "a b",
    retry: int = -1,
) -> str:
    told: list[Piece] = []
    request = chat(number, key, text, stream=True, once=once, retry=retry)
    answered = await repeats.answer(request, lambda tell: echo.answer(request, tell), told.append)
    assert "".join(piece.text for piece in told) == answered.choices[0].text
    return answered.choices[0].text


async def test_what_is_sent_twice_is_answered_once() -> None:
    repeats, echo = IdempotencyCache(), Echo()
    echo.go.clear()
    first = asyncio.create_task(ask(repeats, echo, "x", 1))
    await echo.begun.wait()
    second = asyncio.create_task(ask(repeats, echo, "x", 2))  # it hears what was told before
    await asyncio.sleep(0)
    echo.go.set()
    assert await first == await second == await ask(repeats, echo, "x", 3) == "a b"
    assert len(echo.asked) == 1


async def test_others_are_not_alike() -> None:
    repeats, echo = IdempotencyCache(), Echo()
    for once, key, text in (("", "k", "a"), ("", "k", "a"), ("x", "k", "a"), ("y", "k", "a"), ("x", "l", "a")):
        await ask(repeats, echo, once, key=key, text=text)
    await ask(repeats, echo, "x", text="another question under the same name")
    assert len(echo.asked) == 6


async def test_a_refusal_is_not_kept() -> None:
    repeats, echo = IdempotencyCache(), Echo()
    echo.error = Refusal(429, "busy", "Later.")
    echo.go.clear()
    both = [asyncio.create_task(ask(repeats, echo, "x", number)) for number in (1, 2)]
    await echo.begun.wait()
    echo.go.set()
    assert all(isinstance(error, Refusal) for error in await asyncio.gather(*both, return_exceptions=True))
    echo.error = None
    assert await ask(repeats, echo, "x") == "a b" and len(echo.asked) == 2


async def test_work_ends_when_nobody_waits_for_it() -> None:
    repeats, echo = IdempotencyCache(), Echo()
    echo.go.clear()
    first, second = (asyncio.create_task(ask(repeats, echo, "x", number)) for number in (1, 2))
    await echo.begun.wait()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    assert not echo.ended
    second.cancel()
    await asyncio.gather(second, return_exceptions=True)
    third = asyncio.create_task(ask(repeats, echo, "x", 3))
    echo.go.set()
    assert await third == "a b" and echo.ended == ["cancelled", "answered"]


async def test_memory_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock()
    repeats, echo = IdempotencyCache(clock), Echo()
    await ask(repeats, echo, "old")
    clock.now = module.KEPT_SECONDS + 1
    await ask(repeats, echo, "old")
    assert len(echo.asked) == 2
    monkeypatch.setattr(module, "KEPT_BYTES", 1000)
    await ask(repeats, echo, "large", text="x" * 400)
    await ask(repeats, echo, "larger", text="y" * 600)
    assert len(repeats._entries) <= 1


async def test_equal_requests_are_two_unless_one_is_a_retry() -> None:
    repeats, echo = IdempotencyCache(), Echo()
    await ask(repeats, echo, retry=0)
    await ask(repeats, echo, retry=0)
    assert len(echo.asked) == 2
    await ask(repeats, echo, retry=1)
    await ask(repeats, echo, retry=2)
    assert len(echo.asked) == 2
    await ask(repeats, echo, retry=1, text="c")
    await ask(repeats, echo, retry=1, key="other")
    assert len(echo.asked) == 4


async def test_a_retry_gets_the_answer_that_nobody_heard() -> None:
    repeats, echo = IdempotencyCache(), Echo()
    await ask(repeats, echo, retry=0)
    echo.go.clear()
    echo.begun.clear()
    lost, waits = (asyncio.create_task(ask(repeats, echo, retry=retry)) for retry in (0, 1))
    await echo.begun.wait()
    lost.cancel()
    echo.go.set()
    await asyncio.gather(lost, return_exceptions=True)
    assert await waits == "a b" and len(echo.asked) == 2, "the retry heard the one in progress"


async def test_a_refused_request_is_asked_again_by_its_retry() -> None:
    repeats, echo = IdempotencyCache(), Echo()
    echo.error = Refusal(429, "busy", "Later.")
    with pytest.raises(Refusal):
        await ask(repeats, echo, retry=0)
    echo.error = None
    assert await ask(repeats, echo, retry=1) == "a b" and len(echo.asked) == 2 and len(repeats._entries) == 1
