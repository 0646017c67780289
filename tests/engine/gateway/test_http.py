"""What holds for every interface: keys, paths, limits, broken bytes, the log, clients and engines that go away."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from marlaas.engine import wire
from marlaas.engine.gateway.http import logs, main as app
from marlaas.engine.gateway.http.logs import Log, shown_key
from marlaas.engine.gateway.keys import new_episode_key, new_key
from marlaas.engine.gateway.limits import Limits

from .scripted import KEY, Client, Engine, echo, gateway, refusing, silence

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
        assert status == 404 and "'17/best'" in text and client.engine.asked[0].key == KEY


async def test_the_engine_is_told_what_is_refused_here() -> None:
    async with gateway(silence) as client:
        assert (await client.post(CHAT, {**SAY, "messages": []}))[0] == 400
        rejected = await client.engine.begun.get()
    assert (rejected.key, rejected.message) == (KEY, "messages is empty.")


async def test_without_a_key_nothing_is_asked() -> None:
    async with gateway(echo) as client:
        client.headers = {}
        for path, body in BODIES.items():
            status, answer = await client.post(path, body)
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


async def test_a_client_that_goes_away_ends_its_request() -> None:
    async def begin(engine: Engine, request: Any) -> None:
        if request.stream:
            engine.say(wire.Piece(request.id, 0, text="he"))

    async with gateway(begin) as client:
        for (path, body), stream in product(BODIES.items(), (False, True)):
            response = asyncio.create_task(
                client.session.post(client.url(path), json={**body, "stream": stream}, headers=client.headers)
            )
            request = await client.engine.begun.get()
            if stream:
                (await response).close()
            else:
                response.cancel()
            assert await client.engine.cancelled.get() == request.id


@pytest.mark.parametrize("path", [CHAT, "/v1/messages"])
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


async def test_a_body_that_is_too_large() -> None:
    async def large() -> AsyncIterator[bytes]:
        for _ in range(100):
            yield b" " * (1 << 20)

    async with gateway(echo) as client:
        async with client.session.post(client.url(CHAT), data=large(), headers=client.headers) as response:
            assert (response.status, (await response.json())["error"]["code"]) == (413, "too_large")
        rejected = await client.engine.begun.get()
        assert (rejected.key, rejected.message) == (
            KEY,
            "The body has more than 16,777,216 bytes, the most that is read.",
        )
        assert (await client.post(CHAT, SAY))[0] == 200


async def test_a_body_that_says_it_is_too_large_is_not_waited_for() -> None:
    async with gateway(echo) as client:
        reader, writer = await asyncio.open_connection("127.0.0.1", client.port)
        writer.write(b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer k\r\n")
        writer.write(b"Content-Length: 104857600\r\n\r\n")
        async with asyncio.timeout(10):
            assert (await reader.readline()).startswith(b"HTTP/1.1 413 ")
        writer.close()
        assert (await client.engine.begun.get()).key == "k" and len(client.engine.asked) == 1


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
    """They take no other key's place."""
    release = asyncio.Event()

    async def held(engine: Engine, request: Any) -> None:
        await release.wait()
        await echo(engine, request)

    async with gateway(held, Limits(connections=40)) as client:
        posts = [asyncio.create_task(client.posted(CHAT, SAY)) for _ in range(40)]
        for _ in posts:
            await client.engine.begun.get()
        away = await asyncio.gather(*(client.posted(CHAT, SAY) for _ in range(20)))
        assert {(status, headers["Retry-After"]) for status, _, headers in away} == {(503, "1")}
        posts.append(asyncio.create_task(client.posted(CHAT, SAY, Authorization="Bearer tml-other")))
        assert (await client.engine.begun.get()).key == "tml-other"
        release.set()
        assert [status for status, *_ in await asyncio.gather(*posts)] == [200] * 41


async def test_a_line_of_the_log_has_no_prompt_unless_asked_for(tmp_path: Path) -> None:
    """With prompts it is tested on hostile ones."""
    path = tmp_path / "api.log"
    async with gateway(echo, Limits(log=str(path))) as client:
        await client.post(f"/e/solver{CHAT}", SAY)
        await client.post(CHAT, {**SAY, "n": 0})
    text = path.read_text()
    first, second = map(json.loads, text.splitlines())
    assert (first["route"], first["status"], first["agent"], first["key"]) == (CHAT, 200, "solver", "tml-acme")
    assert (first["prompt_tokens"], first["completion_tokens"], first["model"]) == (11, 7, "17@best")
    assert (second["status"], second["error"]) == (400, "invalid_value")
    assert "secret" not in text and KEY not in text


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


async def test_refusals_of_the_engine_pass_through() -> None:
    async with gateway(refusing) as client:
        for path, body in BODIES.items():
            status, answer, headers = await client.posted(path, body)
            assert (status, headers["Retry-After"]) == (429, "8")
            assert answer["error"]["message"] == "Your quota is used up."
        assert answer["type"] == "error" and answer["error"]["type"] == "rate_limit_error", "as Anthropic has it"


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


async def said(client: Client, *sent: str) -> list[int]:
    """The status of all answers on one connection, on which this is sent piece by piece."""
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
    return [int(answer[:3]) for answer in answers.split(b"HTTP/1.1 ")[1:]]


@pytest.mark.parametrize("sent", ["GET /\n\r\n\r\n", "\x00\r\n\r\n", "x" * 100_000])
async def test_a_head_that_is_none(sent: str) -> None:
    async with faultless() as client:
        assert await said(client, sent) == [400]


async def test_a_body_that_breaks_off_into_nonsense() -> None:
    async with faultless(silence) as client:
        assert await said(client, CHUNKED.format(path=CHAT)) == [400] and not client.engine.asked


@pytest.mark.parametrize(
    ("sent", "statuses"),
    [
        # refused by its head: what comes after that is not answered a second time
        (["POST /v1/messages HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n", "no length\r\n"], [401]),
        ([f"GET /healthz HTTP/1.1\r\n{KEYED}\r\nnonsense\r\n\r\n"], [200, 400]),
        ([CHUNKED.format(path="/v1/models").replace("POST", "GET")], [400]),
    ],
)
async def test_what_is_broken_behind_a_head(sent: list[str], statuses: list[int]) -> None:
    async with faultless() as client:
        assert await said(client, *sent) == statuses


def test_a_key_is_shown_as_it_is_listed() -> None:
    for tenant in ("ada", "a lab of many words and then some", "é"):
        made = new_key(tenant)
        assert shown_key(made.key) == made.prefix and len(made.key) - len(made.prefix) == 37
    episode = new_episode_key()
    assert len(episode) - len(shown_key(episode)) == 37
    assert len(shown_key("tml-ada-" + "x" * 42)) == 8, "of a key that is none the beginning"


async def test_nothing_that_a_client_sends_makes_a_line(tmp_path: Path) -> None:
    """Line ends between the values of its JSON, in names, and characters that move a terminal's cursor."""
    path = tmp_path / "api.log"
    forged = b'{"time": "never", "route": "/", "status": 200}'
    said = "a\\u009b2J\\u202e\\ud83d\\ude00 \u009b2J\u2028".encode()
    messages = b'[{"role": "user", "content": "%s"}]' % said
    body = b'{"model": "m%s",\n"messages": %s, "metadata":\n%s\n}' % (said, messages, forged)
    async with gateway(echo, Limits(log=str(path), log_prompts=True)) as client:
        assert (await client.post(CHAT, body))[0] == 200
        await client.post(CHAT, {"model": "x" * 100_000, "messages": []})
        await client.post(CHAT, {"model": "y" * 100_000, "messages": [{"role": "user", "content": "a"}]})
    text = path.read_text()
    assert text.isascii() and all(one.isprintable() for one in text.splitlines())
    first, second, third = map(json.loads, text.splitlines())
    assert first["sent"]["metadata"]["time"] == "never" and first["status"] == 200
    assert first["sent"]["messages"][0]["content"] == "a\x9b2J\u202e😀 \x9b2J\u2028"
    assert (second["status"], len(third["model"])) == (400, len("17@best"))


def test_two_gateways_write_one_log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each begins it anew when it is full; neither takes what the other has begun for its own."""
    monkeypatch.setattr(logs, "LONGEST", 100)
    path = tmp_path / "api.log"
    clients, episodes = (Log(Limits(log=str(path))) for _ in range(2))
    for log, route in ((clients, "/a"), (episodes, "/b"), (clients, "/c"), (episodes, "/d"), (clients, "/e")):
        log.end(*log.begin(route))
    for log in (clients, episodes):
        log.close()
    kept = [
        [json.loads(line)["route"] for line in text.splitlines()] for text in map(Path.read_text, (old(path), path))
    ]
    assert kept == [["/a", "/b", "/c"], ["/d", "/e"]]


def old(path: Path) -> Path:
    return path.with_name(f"{path.name}.1")


@pytest.mark.parametrize("value", [b"1e999", b"[" * 300 + b"]" * 300, b'"\\ud83d\\ude00"'])
async def test_what_nobody_reads_of_a_body_is_logged(tmp_path: Path, value: bytes) -> None:
    """Keys that are ignored may hold what JSON allows and no number can be; the request is answered, and logged."""
    path = tmp_path / "api.log"
    body = b'{"model": "m", "messages": [{"role": "user", "content": "a"}], "other":\n%s}' % value
    async with gateway(echo, Limits(log=str(path), log_prompts=True)) as client:
        assert (await client.post(CHAT, body))[0] == 200
    (line,) = path.read_text().splitlines()
    assert '"other"' in line or '\\"other\\"' in line
