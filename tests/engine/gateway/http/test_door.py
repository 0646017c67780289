"""What holds for every interface: keys, paths, limits, clients that go away, and engines that do."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from marlaas.engine import wire
from marlaas.engine.gateway.http import app
from marlaas.engine.gateway.limits import Limits

from .scripted import KEY, Engine, echo, gateway, refusing, silence

CHAT = "/v1/chat/completions"
SAY: dict[str, Any] = {"model": "base", "messages": [{"role": "user", "content": "a secret"}]}
BODIES: dict[str, dict[str, Any]] = {
    CHAT: SAY,
    "/v1/completions": {"model": "base", "prompt": "Hi"},
    "/v1/responses": {"model": "base", "input": "Hi"},
    "/v1/messages": {**SAY, "max_tokens": 5},
}


async def test_models_in_both_forms_and_the_nearest_of_a_wrong_name() -> None:
    async with gateway(echo) as client:
        status, text = await client.get("/v1/models")
        models = json.loads(text)["data"]
        assert status == 200 and models[0]["max_model_len"] == 2048
        assert [(model["id"], model["parent"]) for model in models] == [("base", None), ("17@best", "base")]
        _, text = await client.get("/e/solver/v1/models", anthropic_version="2023-06-01")
        assert json.loads(text)["first_id"] == "base"
        status, text = await client.get("/v1/models/17@best")
        assert status == 200 and json.loads(text)["owned_by"] == "acme"
        status, text = await client.get("/v1/models/17/best")
        assert status == 404 and "'17@best'" in text and client.engine.asked[0].key == KEY


@pytest.mark.parametrize("path", BODIES)
async def test_without_a_key_nothing_is_asked(path: str) -> None:
    async with gateway(echo) as client:
        client.headers = {}
        status, answer = await client.post(path, BODIES[path])
        assert status == 401 and "key" in answer["error"]["message"] and not client.engine.asked


async def test_paths_that_are_not_there() -> None:
    async with gateway(echo) as client:
        status, answer = await client.post("/v1/embeddings", {})
        assert (status, answer["error"]["code"]) == (404, "unknown_path")
        status, text = await client.get(CHAT)
        assert status == 405 and "wrong_method" in text
        status, _ = await client.post("/e/a b/v1/chat/completions", SAY)
        assert status == 404


async def test_health_figures_and_the_document() -> None:
    async with gateway(echo) as client:
        await client.post(CHAT, SAY)
        client.headers = {}
        assert await client.get("/healthz") == (200, '{"status":"ok"}')
        status, text = await client.get("/metrics")
        assert status == 200 and 'marlaas_queue_requests{tenant="a\\"b"} 3\n' in text
        assert f'marlaas_gateway_requests_total{{route="{CHAT}",status="200"}} 1\n' in text
        assert 'marlaas_gateway_tokens_total{kind="prompt"} 11\n' in text
        assert (await client.get("/metrics", X_Forwarded_For="9.9.9.9"))[0] == 403
        for host, status in (("models.example.org", 403), ("localhost:8777", 200), ("[::1]:8777", 200), ("[", 403)):
            assert (await client.get("/metrics", Host=host))[0] == status
        document = json.loads((await client.get("/openapi.json"))[1])
    assert set(BODIES) < set(document["paths"])
    assert "temperature" in document["components"]["schemas"]["ChatBody"]["properties"]


@pytest.mark.parametrize("path", BODIES)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_goes_away_ends_its_request(path: str, stream: bool) -> None:
    async def begin(engine: Engine, request: Any) -> None:
        if request.stream:
            engine.say(wire.Piece(request.id, 0, text="he"))

    async with gateway(begin) as client:
        response = asyncio.create_task(
            client.session.post(client.url(path), json={**BODIES[path], "stream": stream}, headers=client.headers)
        )
        request = await client.engine.begun.get()
        if stream:
            (await response).close()
        else:
            response.cancel()
        assert await client.engine.cancelled.get() == request.id


@pytest.mark.parametrize("path", BODIES)
async def test_an_engine_that_goes_away_in_the_middle(path: str) -> None:
    async def leave(engine: Engine, request: Any) -> None:
        if request.stream:
            engine.say(wire.Piece(request.id, 0, text="he"))
        engine.leave()

    async with gateway(leave) as client:
        status, _, headers = await client.posted(path, BODIES[path])
        assert status == 503 and headers["Retry-After"] == "5"
    async with gateway(leave) as client:
        events = await client.stream(path, {**BODIES[path], "stream": True})
        assert any("ended" in json.dumps(data) for _, data in events)


async def test_a_stream_begins_before_a_proxy_gives_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a word of the engine by then, it says that it is alive; what is refused later is an event."""
    monkeypatch.setattr(app, "OPENING", 0.0)
    monkeypatch.setattr(app, "SILENCE", 0.0)
    asked = asyncio.Event()

    async def late(engine: Engine, request: Any) -> None:
        await asked.wait()
        await refusing(engine, request)

    async with gateway(late) as client:
        async with client.session.post(
            client.url(CHAT), json={**SAY, "stream": True}, headers=client.headers
        ) as response:
            assert response.status == 200
            heard = b""
            while b": \n\n" not in heard:
                heard += await response.content.readany()
            asked.set()
            heard += await response.read()
        assert heard.startswith(b'data: {"id":"chatcmpl-') and b"Your quota is used up." in heard


async def test_an_answer_that_takes_too_long() -> None:
    async with gateway(silence, Limits(seconds=0.05)) as client:
        status, answer = await client.post(CHAT, SAY)
        assert status == 504 and "0.05 seconds" in answer["error"]["message"]
        assert await client.engine.cancelled.get() == client.engine.asked[0].id


@pytest.mark.parametrize("said", [{"Content-Length": str(100 << 20)}, {}])
async def test_a_body_that_is_too_large(said: dict[str, str]) -> None:
    async def large() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * (1 << 20)

    async with gateway(echo) as client:
        headers = client.headers | said
        async with client.session.post(client.url(CHAT), data=large(), headers=headers) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (413, "too_large")
        assert (await client.post(CHAT, SAY))[0] == 200


async def test_a_body_that_says_it_is_too_large_is_not_waited_for() -> None:
    async with gateway(echo) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n")
        writer.write(b"Content-Length: 104857600\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()
        assert not client.engine.asked


async def test_a_body_that_is_compressed() -> None:
    async with gateway(echo) as client:
        bomb = gzip.compress(json.dumps(SAY).encode() + b" " * (1 << 20))
        status, answer = await client.post(CHAT, bomb, Content_Encoding="gzip")
        assert (status, answer["error"]["code"]) == (415, "compressed") and "'gzip'" in answer["error"]["message"]
        assert (await client.post(CHAT, SAY, Content_Encoding="identity"))[0] == 200


async def test_slow_clients_are_ended() -> None:
    async with gateway(echo, Limits(head_seconds=0.2)) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\n")
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n")
        writer.write(b"Content-Length: 100\r\n\r\n{")
        assert (await reader.read()).startswith(b"HTTP/1.1 408 ")
        writer.close()
        await writer.wait_closed()
        assert not client.engine.asked


async def test_many_connections_are_answered_or_sent_away() -> None:
    release = asyncio.Event()

    async def held(engine: Engine, request: Any) -> None:
        await release.wait()
        await echo(engine, request)

    async with gateway(held, Limits(connections=200)) as client:
        posts = [asyncio.create_task(client.posted(CHAT, SAY)) for _ in range(300)]
        for _ in range(200):
            await client.engine.begun.get()
        away, _ = await asyncio.wait(posts, return_when=asyncio.FIRST_COMPLETED)
        while len(away) < 100:
            more, _ = await asyncio.wait(set(posts) - away, return_when=asyncio.FIRST_COMPLETED)
            away |= more
        assert {task.result()[0] for task in away} == {503}
        assert {task.result()[2]["Retry-After"] for task in away} == {"1"}
        release.set()
        answered = await asyncio.gather(*(set(posts) - away))
        assert [status for status, *_ in answered] == [200] * 200


async def test_far_too_many_connections_are_closed() -> None:
    async with gateway(echo, Limits(connections=1)) as client:
        writers = [(await asyncio.open_connection("127.0.0.1", client.port))[1] for _ in range(4)]
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        with contextlib.suppress(ConnectionResetError):
            assert await reader.read() == b""
        for one in (*writers, writer):
            one.close()


async def test_a_stream_that_nobody_reads_is_cut_off() -> None:
    async def flood(engine: Engine, request: Any) -> None:
        for _ in range(200):
            for _ in range(100):
                engine.say(wire.Piece(request.id, 0, text="x" * 2000))
            await asyncio.sleep(0)

    async with gateway(flood) as client:
        _, writer = await asyncio.open_connection("127.0.0.1", client.port)
        body = json.dumps({**SAY, "stream": True}).encode()
        head = f"POST {CHAT} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {KEY}\r\nContent-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        assert await client.engine.cancelled.get() == client.engine.asked[0].id
        writer.close()


async def test_a_line_of_the_log_has_no_prompt_unless_asked_for(tmp_path: Path) -> None:
    for prompts in (False, True):
        path = tmp_path / f"{prompts}.log"
        async with gateway(echo, Limits(log=str(path), log_prompts=prompts)) as client:
            await client.post(f"/e/solver{CHAT}", SAY)
            await client.post(CHAT, {**SAY, "n": 0})
        text = path.read_text()
        first, second = map(json.loads, text.splitlines())
        assert (first["route"], first["status"], first["agent"], first["key"]) == (CHAT, 200, "solver", "tml-acme")
        assert (first["prompt_tokens"], first["completion_tokens"], first["model"]) == (11, 7, "17@best")
        assert (second["status"], second["error"]) == (400, "invalid_value")
        assert ("secret" in text) == prompts and KEY not in text


async def test_the_engine_hears_which_request_is_a_retry() -> None:
    async with gateway(echo) as client:
        for told, asked in (
            ({"x_stainless_retry_count": "0"}, ("", 0)),
            ({"x_stainless_retry_count": "2"}, ("", 2)),
            ({"x_stainless_retry_count": "soon"}, ("", -1)),
            ({"idempotency_key": "x"}, ("x", -1)),
            ({}, ("", -1)),
        ):
            await client.posted(CHAT, SAY, **told)
            assert (client.engine.asked[-1].once, client.engine.asked[-1].retry) == asked


async def test_a_refusal_in_the_middle_of_a_stream() -> None:
    async def broken(engine: Engine, request: Any) -> None:
        engine.say(wire.Piece(request.id, 0, text="he"), wire.Refused(request.id, 503, "yields", "The engine yields."))

    async with gateway(broken) as client:
        for path, body in BODIES.items():
            events = await client.stream(path, {**body, "stream": True})
            assert any("The engine yields." in json.dumps(data) for _, data in events)


async def test_an_answer_without_a_choice_is_an_error() -> None:
    async def nothing(engine: Engine, request: Any) -> None:
        engine.say(wire.Answered((), "base", 1, 0, id=request.id))

    async with gateway(nothing) as client:
        assert (await client.post(CHAT, SAY))[0] == 500


async def test_keep_alive_connections_serve_many_requests() -> None:
    connector = aiohttp.TCPConnector(limit=1)
    async with gateway(echo, Limits(connections=1)) as client, aiohttp.ClientSession(connector=connector) as session:
        for _ in range(5):
            async with session.post(client.url(CHAT), json=SAY, headers=client.headers) as response:
                assert response.status == 200
                await response.read()


async def test_refusals_of_the_engine_pass_through() -> None:
    async with gateway(refusing) as client:
        for path, body in BODIES.items():
            status, answer, headers = await client.posted(path, body)
            assert (status, headers["Retry-After"]) == (429, "8")
            assert answer["error"]["message"] == "Your quota is used up."
