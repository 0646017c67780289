"""Real gateways on real ports: shared by clients and episodes, started again, and gone with the engine."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
from collections.abc import AsyncIterator
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest

from marlaas.engine.errors import ConfigError
from marlaas.engine.gateway import processes as module
from marlaas.engine.gateway.limits import Limits
from marlaas.engine.gateway.link import Desk
from marlaas.engine.gateway.processes import Gateways

from .answering import Echo

pytestmark = pytest.mark.processes


@pytest.fixture
async def gateways(desk: Desk, tmp_path: Path) -> AsyncIterator[Gateways]:
    made = Gateways(desk, Limits(log=str(tmp_path / "api.log")), tmp_path / "gateway.log")
    yield made
    await made.stop()


async def ask(url: str, key: str, text: str = "hello there", retry: int | None = None) -> tuple[int, str]:
    """The status and the words of an answer; ``retry`` is what OpenAI's client says of its tries."""
    place = urlsplit(url)
    reader, writer = await asyncio.open_connection(place.hostname, place.port)
    body = json.dumps({"model": "any", "messages": [{"role": "user", "content": text}]}).encode()
    head = f"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nAuthorization: Bearer {key}\r\n"
    head += "" if retry is None else f"x-stainless-retry-count: {retry}\r\n"
    head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n"
    writer.write(head.encode() + body)
    answer = await reader.read()
    writer.close()
    await writer.wait_closed()
    top, _, rest = answer.partition(b"\r\n\r\n")
    status = int(top.split(b" ")[1]) if top else 0
    return status, json.loads(rest)["choices"][0]["message"]["content"] if status == 200 else ""


async def test_an_episode_is_asked_until_it_is_over(gateways: Gateways, desk: Desk) -> None:
    endpoints = gateways
    first, second = await asyncio.gather(endpoints.open(Echo()), endpoints.open(Echo()))
    assert first.url == second.url and first.key != second.key
    assert await ask(first.url, first.key) == (200, "hello there")
    endpoints.close(first)
    assert await ask(first.url, first.key) == (410, "")
    assert await ask(second.url, second.key) == (200, "hello there")


async def test_a_killed_gateway_comes_back_at_its_port(gateways: Gateways, desk: Desk, log: list[str]) -> None:
    slow, endpoints = Echo(), gateways
    slow.go.clear()
    address, other = await endpoints.open(slow), await endpoints.open(Echo())
    under_way = asyncio.create_task(ask(address.url, address.key))
    await slow.begun.wait()
    gateway = gateways.running["episodes"]
    assert gateway.pid is not None
    os.kill(gateway.pid, signal.SIGKILL)
    with pytest.raises((ConnectionError, asyncio.IncompleteReadError, IndexError, ValueError)):
        status, _ = await under_way
        if not status:
            raise ConnectionError
    assert await ask(other.url, other.key) == (200, "hello there")
    assert slow.ended == ["cancelled"] and "was ended by signal SIGKILL; it is started again." in log[0]


async def test_a_retry_gets_the_answer_of_the_first(gateways: Gateways, desk: Desk) -> None:
    echo = Echo()
    address = await gateways.open(echo)
    for retry in (0, 0, 1, 1):  # the same question twice, and the second of them sent again
        assert await ask(address.url, address.key, retry=retry) == (200, "hello there")
    assert len(echo.asked) == 2
    gateway = gateways.running["episodes"]
    assert gateway.pid is not None
    os.kill(gateway.pid, signal.SIGKILL)
    assert await ask(address.url, address.key, retry=0) == (200, "hello there")
    assert len(echo.asked) == 3, "the next gateway's first request is no retry of another's first"


async def test_it_ends_with_its_engine(gateways: Gateways, desk: Desk) -> None:
    address = await gateways.open(Echo())
    assert await ask(address.url, address.key) == (200, "hello there")
    gateway = gateways.running["episodes"]
    assert gateway.pid is not None
    process = psutil.Process(gateway.pid)
    await gateways.stop()
    assert not process.is_running()
    with pytest.raises(ConnectionRefusedError):
        await ask(address.url, address.key)


async def test_clients_and_episodes_have_one_each(gateways: Gateways, desk: Desk) -> None:
    clients = await gateways.start("clients", "localhost", 0)
    assert await gateways.start("clients", "127.0.0.1", 0) is clients and clients.url.startswith("http://127.0.0.1:")
    endpoints = gateways
    address = await endpoints.open(Echo())
    assert (await endpoints.open(Echo())).url == address.url != clients.url
    await gateways.stop("clients")
    assert await ask(address.url, address.key) == (200, "hello there"), "episodes go on"


async def test_clients_that_fill_theirs_keep_nobody_waiting(desk: Desk, tmp_path: Path) -> None:
    """As many connections as there may be, each with a request that waits: clients are sent away, programs are not."""
    most = 500
    crowded = Gateways(desk, Limits(connections=most), tmp_path / "gateway.log")
    clients, slow = await crowded.start("clients", "127.0.0.1", 0), Echo()
    slow.go.clear()
    key = desk.admit(slow)  # whoever asks: the gateway cannot tell clients from programs
    waiting = [asyncio.create_task(ask(clients.url, key)) for _ in range(most)]
    while len(slow.asked) < most:
        await slow.begun.wait()
        await asyncio.sleep(0)
    assert (await ask(clients.url, key))[0] == 503
    endpoints = crowded
    for _ in range(50):
        address = await endpoints.open(Echo())
        assert await ask(address.url, address.key) == (200, "hello there")
    slow.go.set()
    assert await asyncio.gather(*waiting) == [(200, "hello there")] * most
    await crowded.stop()


async def test_one_that_nobody_uses_is_ended(gateways: Gateways) -> None:
    clients = await gateways.start("clients", "127.0.0.1", 0)
    await gateways.stop("clients")
    place = urlsplit(clients.url)
    with pytest.raises(ConnectionRefusedError):
        await asyncio.open_connection(place.hostname, place.port)


async def test_other_machines_do_not_reach_episodes(gateways: Gateways, desk: Desk) -> None:
    clients = await gateways.start("clients", "0.0.0.0", 0)
    address = await gateways.open(Echo())
    assert address.url != clients.url and address.url.startswith("http://127.0.0.1:")
    assert (await ask(clients.url, "tml-ada-wrong"))[0] == 401


async def test_a_port_that_is_taken(gateways: Gateways) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigError, match="another program has this port"):
            await gateways.start("clients", "127.0.0.1", port)
        assert not gateways.running
        waits = asyncio.create_task(gateways.start("clients", "127.0.0.1", port, patience=20.0))
        await asyncio.sleep(0)
    assert (await waits).url.endswith(f":{port}")


async def test_without_the_extra_it_says_how_to_install_it(
    gateways: Gateways, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "NEEDS", ("no_such_library", "nor_this"))
    with pytest.raises(ConfigError, match="needs no_such_library and nor_this, which are not installed") as caught:
        await gateways.open(Echo())
    assert "pip install 'marlaas[api]'" in caught.value.hint
