"""Clients of a real engine, over HTTP: what was trained answers, each tenant its own, while workers come and go."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from typing import Any
from urllib.parse import urlsplit

import pytest

from ..asking import ask, free_port, opened
from ..conftest import PATIENCE, Lab, configured

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A home in which *lab* has trained task 1 and *club* task 2, with an API that is open."""
    with configured(tmp_path_factory.mktemp("serving"), f"[api]\nenabled = true\nport = {free_port()}\n") as lab:
        tasks = [lab.submit("sums", steps=2), lab.submit("secrets", steps=1, tenant="club")]
        lab.marlaas("wait", *map(str, tasks))
        opened(lab)
        yield lab


@pytest.fixture(scope="module")
def keys(lab: Lab) -> dict[str, str]:
    return {tenant: json.loads(lab.marlaas("api", "key", "new", tenant, "--json"))["key"] for tenant in ("lab", "club")}


def body(model: str, **more: Any) -> dict[str, Any]:
    messages = [{"role": "user", "content": "17 + 25 = ?"}]
    return {"model": model, "messages": messages, "max_tokens": 12, "seed": 1} | more


def insistent(url: str, key: str, wanted: dict[str, Any]) -> dict[str, Any]:
    """Ask as the SDKs do: again where the engine says that another try may go through."""
    deadline = time.monotonic() + PATIENCE
    while True:
        status, said = ask(url, key, body=wanted)
        if status == 200:
            return said
        assert status == 503 and time.monotonic() < deadline, (status, said)
        time.sleep(0.05)  # as long as the workers of another process are away


def test_what_was_trained_answers(lab: Lab, keys: dict[str, str]) -> None:
    url = opened(lab)
    _, listed = ask(url, keys["lab"], "/v1/models", body=None)
    names = [model["id"] for model in listed["data"]]
    assert names[0] == "tiny" and "1@newest" in names and not [name for name in names if name.startswith("2")]
    said = {name: ask(url, keys["lab"], body=body(name)) for name in ("base", "1@1", "1@2", "1", "sums@newest")}
    assert {status for status, _ in said.values()} == {200}
    assert said["1@2"][1]["model"] == said["sums@newest"][1]["model"] == "1@2" and said["base"][1]["model"] == "tiny"
    text = said["1@2"][1]["choices"][0]["message"]["content"]
    assert text == said["sums@newest"][1]["choices"][0]["message"]["content"]
    usage = said["1@2"][1]["usage"]
    assert 0 < usage["completion_tokens"] <= 12 and usage["prompt_tokens"] > 0


def test_a_stream_is_what_is_said_without_one(lab: Lab, keys: dict[str, str]) -> None:
    url = opened(lab)
    _, whole = ask(url, keys["lab"], body=body("1@1"))
    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=PATIENCE)
    headers = {"Authorization": f"Bearer {keys['lab']}", "Content-Type": "application/json"}
    connection.request("POST", "/v1/chat/completions", json.dumps(body("1@1", stream=True)), headers)
    lines = connection.getresponse().read().decode().splitlines()
    connection.close()
    pieces = [json.loads(line[6:]) for line in lines if line.startswith("data: {")]
    text = "".join(piece["choices"][0]["delta"].get("content") or "" for piece in pieces if piece["choices"])
    assert text == whole["choices"][0]["message"]["content"] and lines[-2:].count("data: [DONE]") == 1


def test_likelihoods_as_harnesses_ask_for_them(lab: Lab, keys: dict[str, str]) -> None:
    wanted = {
        "model": "1@2",
        "prompt": [[50, 51, 52, 53], [60, 61]],
        "echo": True,
        "logprobs": 1,
        "max_tokens": 1,
        "temperature": 0,
    }
    status, said = ask(opened(lab), keys["lab"], "/v1/completions", wanted)
    assert status == 200
    for choice, count in zip(said["choices"], (4, 2), strict=True):
        told = choice["logprobs"]
        assert len(told["token_logprobs"]) == len(told["top_logprobs"]) == count + 1
        assert told["token_logprobs"][0] is None and all(value <= 0 for value in told["token_logprobs"][1:])
        assert told["token_logprobs"][-1] == max(told["top_logprobs"][-1].values())


def test_tenants_have_their_own(lab: Lab, keys: dict[str, str]) -> None:
    url = opened(lab)
    assert ask(url, keys["club"], body=body("2@1"))[0] == 200
    for tenant, model in (("lab", "2@1"), ("lab", "secrets"), ("club", "1@2"), ("club", "sums")):
        status, said = ask(url, keys[tenant], body=body(model))
        assert status == 404 and said["error"]["code"] == "model_not_found"


def test_a_name_is_given_moved_and_removed(lab: Lab, keys: dict[str, str]) -> None:
    url = opened(lab)
    for version in ("1@1", "1@2"):
        lab.marlaas("adapters", "name", "prod", version)
        assert ask(url, keys["lab"], body=body("prod"))[1]["model"] == version
    assert ask(url, keys["club"], body=body("prod"))[0] == 404
    assert "under the name 'prod'" in lab.marlaas("adapters", "delete", "1@2", code=2)
    lab.marlaas("adapters", "name", "prod", "--remove")
    assert ask(url, keys["lab"], body=body("prod"))[0] == 404


def test_workers_may_come_and_go(lab: Lab, keys: dict[str, str]) -> None:
    url = opened(lab)
    before = insistent(url, keys["lab"], body("1@2"))
    (pid,) = lab.worker_pids("rollout")[:1]
    os.kill(pid, signal.SIGKILL)
    assert insistent(url, keys["lab"], body("1@2"))["choices"] == before["choices"]


def test_a_machine_that_is_given_back_says_when_to_come_again(lab: Lab, keys: dict[str, str]) -> None:
    url = opened(lab)
    lab.marlaas("engine", "yield")
    status, said = ask(url, keys["lab"], body=body("1@2"))
    assert status == 503 and "given the machine back" in said["error"]["message"]
    lab.marlaas("engine", "resume")
    assert insistent(url, keys["lab"], body("1@2"))["model"] == "1@2"


def test_a_tenant_pays_for_what_its_clients_use(lab: Lab, keys: dict[str, str]) -> None:
    def used() -> int:
        rows = json.loads(lab.marlaas("tenants", "--json"))
        return int(next(row["tokens_today"] for row in rows if row["name"] == "club"))

    url, before = opened(lab), used()
    _, said = ask(url, keys["club"], body=body("2"))
    deadline = time.monotonic() + PATIENCE
    while used() == before:
        assert time.monotonic() < deadline
        time.sleep(0.05)  # it is written once a second
    lab.marlaas("tenants", "set", "club", "--tokens-per-day", "1")
    status, said = ask(url, keys["club"], body=body("2"))
    assert status == 429 and "quota" in said["error"]["message"]
    lab.sound(1, 2)
