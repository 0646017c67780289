"""The engine's end of the gateway's link: keys, answers, streams, refusals, repeats, a gateway that dies or lies."""

from __future__ import annotations

import asyncio
import string
from collections.abc import Iterable
from pathlib import Path

import pytest

from marlaas.engine.errors import ConfigError, StoreError, WorkerDied
from marlaas.engine.gateway import link as module
from marlaas.engine.gateway.keys import check_scopes, digest, new_episode_key, new_key
from marlaas.engine.gateway.link import Desk, IdempotencyCache
from marlaas.engine.store.submissions import add_key, revoke_key
from marlaas.engine.store.tasks import KeyUse
from marlaas.engine.wire import (
    Answered,
    Choice,
    Piece,
    Refusal,
    Refused,
    Rejected,
)

from .answering import Echo, chat, linked
from .conftest import EchoServing


async def test_an_answer_and_a_stream(desk: Desk) -> None:
    key = desk.admit(Echo())
    async with linked(desk) as gateway:
        whole = await gateway.ask(chat(7, key))
        assert whole == [Answered((Choice(0, "one two three", "stop"),), "1@1", 3, 4, 1, 7)]
        streamed = await gateway.ask(chat(8, key, stream=True))
    pieces = [piece for piece in streamed if isinstance(piece, Piece)]
    assert streamed[: len(pieces)] == pieces and {piece.id for piece in pieces} == {8}
    assert "".join(piece.text for piece in pieces) == "one two three"
    assert streamed[len(pieces) :] == [Answered((Choice(0, "one two three", "stop"),), "1@1", 3, 4, 1, 8)]


async def test_an_episode_hears_of_what_the_gateway_refuses(desk: Desk) -> None:
    echo = Echo()
    key = desk.admit(echo)
    async with linked(desk) as gateway:
        gateway.send(Rejected(1, key, "messages is empty."), Rejected(2, "tml-of-a-client", "No."))
        assert isinstance((await gateway.ask(chat(3, key)))[-1], Answered)
    assert echo.ended == ["messages is empty.", "answered"]


async def test_how_requests_are_refused(desk: Desk, log: list[str]) -> None:
    echo = Echo()
    key = desk.admit(echo)
    async with linked(desk) as gateway:
        for number, (error, status, code) in enumerate(
            [
                (Refusal(429, "busy", "Later.", "max_tokens", 2.5), 429, "busy"),
                (WorkerDied("The sampler died."), 503, "engine_error"),
                (RuntimeError("a mistake"), 500, "internal_error"),
            ]
        ):
            echo.error = error
            (refused,) = await gateway.ask(chat(number, key))
            assert isinstance(refused, Refused) and (refused.status, refused.code) == (status, code)
            if status == 429:
                assert (refused.message, refused.where, refused.retry_after) == ("Later.", "max_tokens", 2.5)
        echo.error = None
        assert isinstance((await gateway.ask(chat(9, key)))[-1], Answered)
    assert log == ["A request could not be answered (RuntimeError: a mistake)."]


async def test_a_request_that_is_cancelled_ends(desk: Desk) -> None:
    echo = Echo()
    echo.go.clear()
    key = desk.admit(echo)
    async with linked(desk) as gateway:
        gateway.cancel(5)  # nobody asked
        gateway.send(chat(1, key))
        await echo.begun.wait()
        gateway.cancel(1)
        while not echo.ended:
            await asyncio.sleep(0)
        echo.go.set()
        assert isinstance((await gateway.ask(chat(2, key)))[-1], Answered)
        assert 1 not in gateway.heard and echo.ended == ["cancelled", "answered"]


async def test_a_program_that_outlives_its_episode(desk: Desk) -> None:
    echo = Echo()
    echo.go.clear()
    key, other = desk.admit(echo), desk.admit(Echo())
    async with linked(desk) as gateway:
        gateway.send(chat(1, key))
        await echo.begun.wait()
        desk.dismiss(key)
        for number in (1, 2):
            gateway.send(*([chat(2, key)] if number == 2 else []))
            (refused,) = await gateway.end_of(number)
            assert isinstance(refused, Refused) and (refused.status, refused.code) == (410, "episode_over")
        assert isinstance((await gateway.ask(chat(3, other)))[-1], Answered)
    assert echo.ended == ["cancelled"] and not desk.links


async def test_what_is_no_request_ends_the_link(desk: Desk, log: list[str]) -> None:
    for lie in (b"\x00\x00\x00\x02\xc1\xc1", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\x80"):
        log.clear()
        async with linked(desk) as gateway:
            gateway.writer.write(lie)
            assert await gateway.reader.read() == b""
        assert len(log) == 1 and log[0].startswith("The gateway sent what is no request")


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


@pytest.mark.parametrize(("once", "tries"), [("x", (-1, -1, -1)), ("", (0, 1, 2))])
async def test_a_refusal_is_not_kept(once: str, tries: tuple[int, ...]) -> None:
    """Neither under a client's key nor for its retries."""
    repeats, echo = IdempotencyCache(), Echo()
    echo.error = Refusal(429, "busy", "Later.")
    both = (ask(repeats, echo, once, number, retry=retry) for number, retry in enumerate(tries[:2]))
    assert all(isinstance(error, Refusal) for error in await asyncio.gather(*both, return_exceptions=True))
    asked, echo.error = len(echo.asked), None
    assert await ask(repeats, echo, once, retry=tries[2]) == "a b" and len(echo.asked) == asked + 1


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
    now = [0.0]
    repeats, echo = IdempotencyCache(lambda: now[0]), Echo()
    await ask(repeats, echo, "old")
    now[0] = module.KEPT_SECONDS + 1
    await ask(repeats, echo, "old")
    assert len(echo.asked) == 2
    monkeypatch.setattr(module, "KEPT_BYTES", 1000)
    for text in ("x" * 400, "y" * 600, "x" * 400):
        await ask(repeats, echo, text[0], text=text)
    assert len(echo.asked) == 5, "the oldest makes room"


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


def refused(desk: Desk, key: str) -> tuple[int, str]:
    with pytest.raises(Refusal) as caught:
        desk.find(key)
    assert caught.value.message.endswith(".") and "\n" not in caught.value.message
    return caught.value.status, caught.value.code


def test_an_episode_is_answered_until_it_is_over(desk: Desk) -> None:
    echo = Echo()
    key = desk.admit(echo)
    assert desk.find(key) == (echo, None) and not desk.open
    desk.dismiss(key)
    desk.dismiss(key)
    assert refused(desk, key) == (410, "episode_over") and desk.is_over(key)
    assert refused(desk, "tml-episode-of-the-engine-before") == (410, "episode_over")


def test_a_tenant_named_like_an_episode_is_answered(desk: Desk, serving: EchoServing, tmp_path: Path) -> None:
    made = new_key("episode lab")
    add_key(tmp_path / "marlaas.db", "episode lab", "", made.digest, made.prefix, ("chat",))
    answerer, client = desk.find(made.key)
    assert answerer is serving.echo and client is not None and client.tenant == "episode lab"
    revoke_key(tmp_path / "marlaas.db", made.key)
    assert refused(desk, made.key) == (401, "invalid_api_key")


def test_a_client_is_answered_while_the_api_is_open(desk: Desk, key: str, serving: EchoServing) -> None:
    answerer, client = desk.find(key)
    assert answerer is serving.echo and client is not None
    assert (client.tenant, client.scopes) == ("ada", ("chat",))
    desk.open = False
    assert refused(desk, key) == (503, "api_closed")
    desk.open, desk.serving = True, None
    assert refused(desk, key) == (404, "model_not_found")


def test_a_key_that_nobody_has_is_refused_first(desk: Desk, key: str, tmp_path: Path) -> None:
    revoke_key(tmp_path / "marlaas.db", key)
    for desk.open in (True, False):
        for wrong in ("", key + "x", key[:-1], key.upper(), "sk-\ud800'; DROP TABLE api_keys", key):
            assert refused(desk, wrong) == (401, "invalid_api_key")


def test_a_key_is_for_its_scopes(desk: Desk, serving: EchoServing, tmp_path: Path) -> None:
    made = new_key("bob")
    add_key(tmp_path / "marlaas.db", "bob", "", made.digest, made.prefix, ("train",))
    assert refused(desk, made.key) == (403, "scope_missing") and not serving.served


def test_a_database_that_cannot_be_read_is_no_wrong_key() -> None:
    def broken(digest: bytes) -> None:
        raise StoreError("the disk is away.")

    assert refused(Desk(broken, lambda uses: None, lambda *line: None), "tml-ada-1") == (503, "engine_busy")


SAFE = set(string.ascii_letters + string.digits + "-_.")


@pytest.mark.parametrize("tenant", ["ada", "physics-lab", "zwei Wörter", "💡", "x" * 200, "a\tb"])
def test_any_tenants_key_can_stand_in_a_header(tenant: str) -> None:
    made = new_key(tenant)
    assert made.key.startswith("tml-") and set(made.key) <= SAFE and len(made.key) < 90
    assert made.key.startswith(made.prefix) and len(made.key) - len(made.prefix) >= 32
    assert made.digest == digest(made.key) and len(made.digest) == 32


def test_a_key_names_its_tenant_and_is_new() -> None:
    assert new_key("ada").key.startswith("tml-ada-") and new_key("two words").prefix.startswith("tml-two-words-")
    keys = {new_key("ada").key for _ in range(100)} | {new_episode_key() for _ in range(100)}
    assert len(keys) == 200 and all(key.startswith(("tml-ada-", "tml-episode-")) for key in keys)


def test_scopes_are_known_words() -> None:
    assert check_scopes(["train", "chat", "chat"]) == ("chat", "train")
    for wrong in (["chart"], []):
        with pytest.raises(ConfigError, match="Known are chat, train, admin"):
            check_scopes(wrong)


def test_what_cannot_be_written_waits() -> None:
    written: list[KeyUse] = []

    def write(uses: Iterable[KeyUse]) -> None:
        if full:
            raise StoreError("The disk is full.")
        written.extend(uses)

    full, desk = True, Desk(lambda digest: None, write, lambda *line: None, lambda: 7.0)
    desk.count(1, 10, 20)
    with pytest.raises(StoreError):
        desk.flush()
    full = False
    desk.count(1, 0, 0)
    desk.flush()
    assert written == [KeyUse(1, 2, 10, 20, 7.0)]
