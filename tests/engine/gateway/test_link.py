"""What is said over a real socketpair: answers, streams, refusals, cancelled requests, a gateway that dies or lies."""

from __future__ import annotations

import asyncio

from marlaas.engine.errors import WorkerDied
from marlaas.engine.gateway.link import Desk
from marlaas.engine.store.tasks import KeyUse
from marlaas.engine.wire import (
    Answered,
    Choice,
    Complete,
    Figures,
    FigureTable,
    Model,
    ModelList,
    Models,
    Piece,
    Refusal,
    Refused,
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


async def test_prompts_models_and_figures(desk: Desk) -> None:
    key = desk.admit(Echo())

    async def figures() -> list[tuple[str, dict[str, str], float]]:
        return [("requests", {"tenant": "ada"}, 3.0)]

    desk.figures = figures
    async with linked(desk) as gateway:
        (said,) = await gateway.ask(Complete(1, key, "", ("a", (5, 6))))
        assert isinstance(said, Answered) and [one.text for one in said.choices] == ["a", "(5, 6)"]
        gateway.send(Models(2, key), Figures(3), Models(4, "wrong"))
        assert await gateway.end_of(2) == [ModelList(2, (Model("echo"),))]
        assert await gateway.end_of(3) == [FigureTable(3, (("requests", {"tenant": "ada"}, 3.0),))]
        (refused,) = await gateway.end_of(4)
        assert isinstance(refused, Refused) and refused.status == 401


async def test_requests_do_not_wait_for_each_other(desk: Desk) -> None:
    slow, quick = Echo(), Echo()
    slow.go.clear()
    keys = desk.admit(slow), desk.admit(quick)
    async with linked(desk) as gateway:
        gateway.send(chat(1, keys[0]))
        for number in range(2, 50):
            gateway.send(chat(number, keys[1]))
        for number in range(2, 50):
            assert isinstance((await gateway.end_of(number))[-1], Answered)
        slow.go.set()
        assert isinstance((await gateway.end_of(1))[-1], Answered)


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


async def test_requests_end_with_the_gateway(desk: Desk) -> None:
    echo = Echo()
    echo.go.clear()
    key = desk.admit(echo)
    async with linked(desk) as gateway:
        gateway.send(chat(1, key), chat(2, key, once="x"))
        while len(echo.asked) < 2:
            await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert echo.ended == ["cancelled", "cancelled"]
    echo.go.set()
    async with linked(desk) as gateway:  # the next one
        assert isinstance((await gateway.ask(chat(1, key)))[-1], Answered)


async def test_what_is_sent_twice_is_asked_once(desk: Desk) -> None:
    echo = Echo()
    key = desk.admit(echo)
    async with linked(desk) as gateway:
        first = await gateway.ask(chat(1, key, stream=True, once="x"))
        second = await gateway.ask(chat(2, key, stream=True, once="x"))
    async with linked(desk) as gateway:  # through the next gateway, too
        third = await gateway.ask(chat(3, key, stream=True, once="x"))
    assert len(echo.asked) == 1
    assert [type(one) for one in first] == [type(one) for one in second] == [type(one) for one in third]
    assert {one.id for one in second} == {2} and {one.id for one in third} == {3}


async def test_a_client_is_counted(desk: Desk, key: str, serving: EchoServing, written: list[KeyUse]) -> None:
    async with linked(desk) as gateway:
        await gateway.ask(chat(1, key))
        await gateway.ask(chat(2, key, once="x"))
        await gateway.ask(chat(3, key, once="x"))
        await gateway.ask(chat(4, desk.admit(Echo())))
    desk.flush()
    assert written == [KeyUse(1, 2, 6, 8, 3.0)]


async def test_what_is_no_request_ends_the_link(desk: Desk, log: list[str]) -> None:
    for lie in (b"\x00\x00\x00\x02\xc1\xc1", b"\xff\xff\xff\xff", b"\x00\x00\x00\x01\x80"):
        log.clear()
        async with linked(desk) as gateway:
            gateway.writer.write(lie)
            assert await gateway.reader.read() == b""
        assert len(log) == 1 and log[0].startswith("The gateway sent what is no request")
