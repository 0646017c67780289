"""The API of a real engine: who is refused, what answers, and what survives kills, other ports and a yield."""

from __future__ import annotations

import http.client
import json
import os
import signal
import socket
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import psutil
import pytest

from marlaas.engine.daemon import control

from .conftest import PATIENCE, Lab, awaited, configured

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

GATEWAY = "marlaas.engine.gateway.http.main"


@pytest.fixture(scope="module")
def port() -> int:
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        return int(bound.getsockname()[1])


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Lab]:
    """A home whose API opens with the engine, in which *lab* has trained task 1 and *club* task 2."""
    with configured(tmp_path_factory.mktemp("api"), f"[api]\nenabled = true\nport = {port}\n") as lab:
        small: dict[str, Any] = {"train": {"groups_per_step": 1, "group_size": 4}, "eval": {"prompts": 1}}
        tasks = [lab.submit("sums", steps=2, **small), lab.submit("secrets", steps=1, tenant="club", **small)]
        lab.marlaas("wait", *map(str, tasks))
        yield lab


@pytest.fixture(scope="module")
def keys(lab: Lab) -> dict[str, str]:
    return {tenant: new_key(lab, tenant) for tenant in ("lab", "club")}


def new_key(lab: Lab, *words: str) -> str:
    return str(json.loads(lab.marlaas("api", "key", "new", *words, "--json"))["key"])


def opened(lab: Lab) -> str:
    """The address of the API, as soon as it is open."""
    return str(json.loads(lab.marlaas("api", "start", "--json"))["url"])


def chat(model: str, **more: Any) -> dict[str, Any]:
    """A body for chat completions."""
    messages = [{"role": "user", "content": "17 + 25 = ?"}]
    return {"model": model, "messages": messages, "max_tokens": 12, "seed": 1} | more


def ask(url: str, key: str | None, body: Any, path: str = "/v1/chat/completions") -> tuple[int, Any]:
    """The status and the answer as any client gets them: JSON, or the lines of a stream."""
    place = urlsplit(url)
    connection = http.client.HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE)
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})
    try:
        connection.request("POST" if body else "GET", path, json.dumps(body) if body else None, headers)
        response = connection.getresponse()
        text = response.read().decode()
        return response.status, text.splitlines() if text.startswith("data: ") else json.loads(text)
    finally:
        connection.close()


def insistent(url: str, key: str, body: dict[str, Any]) -> dict[str, Any]:
    """Ask as the SDKs do: again where the engine says that another try may go through."""

    def answer() -> dict[str, Any] | None:
        status, said = ask(url, key, body)
        assert status in (200, 503), said
        return said if status == 200 else None

    return awaited(answer) or {}


def test_keys_let_in_and_what_they_use_is_counted(lab: Lab, port: int) -> None:
    url = opened(lab)
    assert url == f"http://127.0.0.1:{port}"
    made = json.loads(lab.marlaas("api", "key", "new", "ada", "--json"))
    assert ask(url, None, chat("tiny"))[0] == ask(url, "tml-ada-wrong", chat("tiny"))[0] == 401
    status, said = ask(url, made["key"], chat("nobody@1"))
    assert status == 404 and said["error"]["code"] == "model_not_found"
    status, said = ask(url, made["key"], chat("tiny"))
    assert status == 200 and said["choices"][0]["message"]["role"] == "assistant"

    def counted() -> list[tuple[int, ...]]:
        rows = json.loads(lab.marlaas("api", "key", "list", "--json"))
        assert all(row["last_use"] is not None for row in rows if row["requests"])
        mine = [row for row in rows if row["prefix"] == made["prefix"]]
        return [(row["tokens_in"], row["tokens_out"]) for row in mine if row["requests"] == 1]

    assert awaited(counted) == [(said["usage"]["prompt_tokens"], said["usage"]["completion_tokens"])]
    lab.marlaas("api", "key", "revoke", made["key"])
    assert ask(url, made["key"], chat("tiny"))[0] == 401


def test_what_was_trained_answers(lab: Lab, keys: dict[str, str]) -> None:
    url = opened(lab)
    _, listed = ask(url, keys["lab"], None, "/v1/models")
    names = [model["id"] for model in listed["data"]]
    assert names[0] == "tiny" and "1@newest" in names and not [name for name in names if name.startswith("2")]
    said = {name: ask(url, keys["lab"], chat(name)) for name in ("base", "1@1", "1@2", "1", "sums@newest")}
    assert {status for status, _ in said.values()} == {200}
    assert said["1@2"][1]["model"] == said["sums@newest"][1]["model"] == "1@2" and said["base"][1]["model"] == "tiny"
    text = said["1@2"][1]["choices"][0]["message"]["content"]
    assert text == said["sums@newest"][1]["choices"][0]["message"]["content"]
    usage = said["1@2"][1]["usage"]
    assert 0 < usage["completion_tokens"] <= 12 and usage["prompt_tokens"] > 0

    _, lines = ask(url, keys["lab"], chat("1@2", stream=True))
    pieces = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    streamed = "".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces if piece["choices"])
    assert streamed == text and lines[-2:].count("data: [DONE]") == 1

    harness = {"model": "1@2", "prompt": [[50, 51, 52], [60, 61]], "echo": True, "logprobs": 1, "max_tokens": 1}
    status, said_of_prompts = ask(url, keys["lab"], harness | {"temperature": 0}, "/v1/completions")
    assert status == 200
    for choice, count in zip(said_of_prompts["choices"], (3, 2), strict=True):
        logprobs = choice["logprobs"]["token_logprobs"]
        assert len(logprobs) == count + 1 and logprobs[0] is None and all(value <= 0 for value in logprobs[1:])
        assert logprobs[-1] == max(choice["logprobs"]["top_logprobs"][-1].values())


def test_tenants_have_their_own_versions_and_names(lab: Lab, keys: dict[str, str]) -> None:
    url = opened(lab)
    assert ask(url, keys["club"], chat("2@1"))[0] == 200
    for tenant, model in (("lab", "2@1"), ("lab", "secrets"), ("club", "1@2"), ("club", "sums")):
        status, said = ask(url, keys[tenant], chat(model))
        assert status == 404 and said["error"]["code"] == "model_not_found"
    for version in ("1@1", "1@2"):
        lab.marlaas("adapters", "name", "prod", version)
        assert ask(url, keys["lab"], chat("prod"))[1]["model"] == version
    assert ask(url, keys["club"], chat("prod"))[0] == 404
    assert "under the name 'prod'" in lab.marlaas("adapters", "delete", "1@2", code=2)
    lab.marlaas("adapters", "name", "prod", "--remove")
    assert ask(url, keys["lab"], chat("prod"))[0] == 404


def test_a_tenant_pays_for_what_its_clients_use(lab: Lab, keys: dict[str, str]) -> None:
    def used() -> int:
        rows = json.loads(lab.marlaas("tenants", "--json"))
        return int(next(row["tokens_today"] for row in rows if row["name"] == "club"))

    url, before = opened(lab), used()
    ask(url, keys["club"], chat("2"))
    awaited(lambda: used() != before)  # it is written once a second
    lab.marlaas("tenants", "set", "club", "--tokens-per-day", "1")
    status, said = ask(url, keys["club"], chat("2"))
    assert status == 429 and "quota" in said["error"]["message"]
    lab.sound(1, 2)


def test_workers_gateways_and_engines_come_and_go(lab: Lab, keys: dict[str, str]) -> None:
    url, body = opened(lab), chat("1@2")
    before = insistent(url, keys["lab"], body)["choices"]
    os.kill(lab.worker_pids("rollout")[0], signal.SIGKILL)
    assert insistent(url, keys["lab"], body)["choices"] == before

    (first,) = lab.worker_pids(GATEWAY)
    os.kill(first, signal.SIGKILL)
    assert ask(url, keys["lab"], chat("nobody@1"))[0] == 404, "whoever connects waits for the next one"
    (then,) = awaited(lambda: [pid for pid in lab.worker_pids(GATEWAY) if pid != first])
    assert opened(lab) == url and psutil.Process(then).is_running()

    lab.marlaas("engine", "yield")
    status, said = ask(url, keys["lab"], body)
    assert status == 503 and "given the machine back" in said["error"]["message"]
    lab.marlaas("engine", "resume")
    assert insistent(url, keys["lab"], body)["model"] == "1@2"

    lab.kill_engine()
    control.ensure_running(lab.home)
    assert opened(lab) == url and ask(url, keys["lab"], chat("nobody@1"))[0] == 404
    control.stop(lab.home)
    with pytest.raises(ConnectionRefusedError):
        ask(url, keys["lab"], body)
    lab.marlaas("api", "status", code=3)
