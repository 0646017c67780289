"""What clients should not do, and what should not happen to them: each has its answer, and the API goes on.

Spoken over sockets, without any library, so that nothing is tried again in secret.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import re
import shutil
import socket
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from tests.end_to_end.conftest import Lab

from .conftest import Open, opened, shipped_lab, stored, trained

__all__ = ["shipped_lab"]
pytestmark = [pytest.mark.clients, pytest.mark.processes, pytest.mark.timeout(600)]

CHAT, MESSAGES, RESPONSES = "/v1/chat/completions", "/v1/messages", "/v1/responses"
HELLO = [{"role": "user", "content": "47+85="}]
PATIENCE = 60.0
EXAMPLES = Path(__file__).parents[3] / "examples"


@dataclass(frozen=True)
class Answer:
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def address(api: Open) -> tuple[str, int]:
    parts = urlsplit(api.url)
    assert parts.hostname and parts.port
    return parts.hostname, parts.port


def post(api: Open, path: str, body: dict[str, Any], **headers: str) -> Answer:
    connection = http.client.HTTPConnection(*address(api), timeout=PATIENCE)
    sent = {"Content-Type": "application/json"} | {name.replace("_", "-"): value for name, value in headers.items()}
    if api.key:
        sent["Authorization"] = f"Bearer {api.key}"
    with contextlib.closing(connection):
        connection.request("POST", path, json.dumps(body), sent)
        answer = connection.getresponse()
        return Answer(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


def chat(api: Open, model: str = "tiny", **more: Any) -> Answer:
    return post(api, CHAT, {"model": model, "messages": HELLO, "max_tokens": 8, "temperature": 0, **more})


@pytest.fixture(scope="module")
def task(shipped_lab: Lab) -> int:
    """A task of the tenant ``lab``, with a version."""
    number = shipped_lab.submit("sums", steps=1)
    shipped_lab.marlaas("wait", str(number))
    return number


@pytest.fixture(scope="module")
def api(shipped_lab: Lab, task: int) -> Iterator[Open]:
    found = opened(shipped_lab)
    yield found
    assert chat(found).status == 200, "after everything else it still answers"


@pytest.mark.parametrize(("path", "kind"), [(CHAT, "openai"), (RESPONSES, "openai"), (MESSAGES, "anthropic")])
def test_no_key(api: Open, path: str, kind: str) -> None:
    refused = post(replace(api, key=""), path, {"model": "tiny", "messages": HELLO, "input": "a", "max_tokens": 8})
    assert refused.status == 401
    error = refused.json["error"]
    assert error["type"] == "authentication_error" and "key" in error["message"]
    assert refused.json.get("type") == ("error" if kind == "anthropic" else None)


def test_another_tenants_key_sees_nothing_of_it(shipped_lab: Lab, api: Open, task: int) -> None:
    assert chat(api, f"{task}@1").status == 200
    stranger = opened(shipped_lab, "stranger")
    refused = chat(stranger, f"{task}@1")
    assert refused.status == 404 and refused.json == chat(stranger, f"{task}@1").json
    nothing = chat(stranger, "987654@1")
    assert nothing.json["error"]["message"].replace("987654@1", f"{task}@1") == refused.json["error"]["message"], (
        "what belongs to others is answered as what is not there"
    )


def test_an_unknown_model_names_the_nearest(api: Open, task: int) -> None:
    refused = chat(api, "tinny")
    assert refused.status == 404 and refused.json["error"]["code"] == "model_not_found"
    assert "tiny" in refused.json["error"]["message"]


def test_a_prompt_beyond_the_context(api: Open) -> None:
    refused = chat(api, messages=[{"role": "user", "content": "1" * 20_000}])
    assert refused.status == 400 and refused.json["error"]["code"] == "context_length_exceeded"


def test_a_body_of_100_mb(api: Open) -> None:
    """It is refused by its head, or as it comes; the gateway does not grow by it."""
    before = memory(api)
    with socket.create_connection(address(api), timeout=PATIENCE) as connection:
        head = (
            f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {api.key}\r\nContent-Length: {100 << 20}\r\n\r\n"
        )
        connection.sendall(head.encode())
        with contextlib.suppress(ConnectionError):
            for _ in range(100):
                connection.sendall(b"x" * (1 << 20))
        with contextlib.suppress(ConnectionError):
            assert b" 413 " in connection.recv(4096).split(b"\r\n")[0]
    assert memory(api) - before < 64 << 20


def test_slow_clients_hold_up_nobody(api: Open) -> None:
    """A hundred of them send half a head, and half a body."""
    half = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nAuthorization: Bearer {api.key}\r\nContent-Length: 100\r\n\r\n{{"
    with contextlib.ExitStack() as stack:
        for number in range(100):
            slow = stack.enter_context(socket.create_connection(address(api), timeout=PATIENCE))
            slow.sendall(half.encode()[: 30 if number % 2 else None])
        began = time.monotonic()
        assert chat(api).status in (200, 429, 503)
        assert time.monotonic() - began < 10


def test_500_connections(api: Open) -> None:
    """All are answered, or told when to come back."""
    body = json.dumps({"model": "tiny", "messages": HELLO, "max_tokens": 4}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {api.key}\r\n"
    request = head.encode() + f"Content-Length: {len(body)}\r\n\r\n".encode() + body
    statuses = []
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.create_connection(address(api), timeout=PATIENCE)) for _ in range(500)]
        for each in sockets:
            each.sendall(request)
        for each in sockets:
            head_line, _, rest = each.recv(65536).partition(b"\r\n")
            statuses.append(int(head_line.split()[1]))
            assert statuses[-1] == 200 or b"retry-after:" in rest.lower(), head_line
    assert set(statuses) <= {200, 429, 503} and 200 in statuses, statuses


def test_500_connections_starve_no_episode(shipped_lab: Lab, api: Open) -> None:
    """They ask again and again, and wait as they are told to; meanwhile a task's programs ask their models, too."""
    shutil.copytree(EXAMPLES / "own_agent", shipped_lab.home.root / "own_agent")
    (shipped_lab.home.root / "own_agent").rename(shipped_lab.home.plugins / "own_agent")

    async def crowd() -> tuple[int, Counter[int]]:
        statuses: Counter[int] = Counter()
        clients = [asyncio.create_task(asks_on(api, statuses)) for _ in range(500)]
        while statuses.total() < 500:
            await asyncio.sleep(0.1)
        train = {"groups_per_step": 2, "group_size": 8, "max_staleness": 0}
        number = shipped_lab.submit("crowded", "own_agent", steps=3, train=train, sampling={"max_tokens": 8})
        await asyncio.to_thread(trained, shipped_lab, number, 400)
        before = statuses.total()
        while statuses.total() == before:
            await asyncio.sleep(0.1)
        for client in clients:
            client.cancel()
        await asyncio.gather(*clients, return_exceptions=True)
        return number, statuses

    number, statuses = asyncio.run(crowd())
    until(lambda: chat(api).status == 200)
    assert set(statuses) <= {200, 429, 503} and statuses[200] > 0, statuses
    episodes = stored(shipped_lab, number)
    assert len(episodes) == 3 * 2 * 8 and {one.status for one in episodes} == {"ok"}, [one.failure for one in episodes]


async def asks_on(api: Open, statuses: Counter[int]) -> None:
    """A client that never stops: a connection each time."""
    body = json.dumps({"model": "tiny", "messages": HELLO, "max_tokens": 4}).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nAuthorization: Bearer {api.key}\r\n"
    while True:
        reader, writer = await asyncio.open_connection(*address(api))
        try:
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            answer = await reader.read()
        finally:
            writer.close()
            with contextlib.suppress(ConnectionError):
                await writer.wait_closed()
        statuses[int(answer.split()[1])] += 1
        if found := re.search(rb"(?i)retry-after: (\d+)", answer):
            await asyncio.sleep(int(found[1]))


def test_a_request_sent_twice_is_answered_once(api: Open) -> None:
    wishes: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 1}
    once = [post(api, CHAT, wishes, Idempotency_Key="one").json for _ in "ab"]
    assert once[0]["choices"] == once[1]["choices"]
    retried = [post(api, CHAT, wishes, X_Stainless_Retry_Count=count).json for count in "01"]
    assert retried[0]["choices"] == retried[1]["choices"]


def test_a_stream_asked_for_twice(api: Open) -> None:
    wishes: dict[str, Any] = {"model": "tiny", "messages": HELLO, "max_tokens": 8, "temperature": 1, "stream": True}
    texts = []
    for _ in "ab":
        events = post(api, CHAT, wishes, Idempotency_Key="two").body.decode().split("\n\n")
        parts = [json.loads(event.removeprefix("data: ")) for event in events if event.startswith("data: {")]
        texts.append("".join(choice["delta"].get("content") or "" for part in parts for choice in part["choices"]))
        assert any("[DONE]" in event for event in events)
    assert texts[0] == texts[1] != ""


def test_an_engine_that_yields_refuses_and_goes_on(shipped_lab: Lab, api: Open) -> None:
    shipped_lab.marlaas("engine", "yield")
    until(lambda: chat(api).status == 503)
    refused = chat(api)
    assert refused.status == 503 and int(refused.headers["retry-after"]) >= 1
    shipped_lab.marlaas("engine", "resume")
    until(lambda: chat(api).status == 200)


def test_a_gateway_that_is_killed_is_started_again(api: Open) -> None:
    before = gateway(api)
    before.kill()
    until(lambda: answers(api))
    assert gateway(api) != before


def answers(api: Open) -> bool:
    try:
        return chat(api).status == 200
    except (OSError, http.client.HTTPException):
        return False


def until(true: Any) -> None:
    deadline = time.monotonic() + PATIENCE
    while not true():
        assert time.monotonic() < deadline
        time.sleep(0.1)  # the engine is another process: there is nothing to await


def gateway(api: Open) -> psutil.Process:
    """The process that listens there; episodes have another one."""
    port = address(api)[1]
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if any("gateway.http.main" in word for word in process.cmdline()) and any(
                one.laddr.port == port for one in process.net_connections("tcp") if one.status == psutil.CONN_LISTEN
            ):
                return process
    raise AssertionError("nobody listens")


def memory(api: Open) -> int:
    """Bytes of the process that listens there."""
    return int(gateway(api).memory_info().rss)
