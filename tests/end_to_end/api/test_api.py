"""The API of a real engine through a real gateway: who is refused, what survives kills, and a port that stays."""

from __future__ import annotations

import json
import os
import signal
import socket
import time
from collections.abc import Iterator

import psutil
import pytest

from marlaas.engine.daemon import control

from ..asking import CHAT, ask, free_port, opened
from ..conftest import PATIENCE, Lab, configured

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

GATEWAY = "marlaas.engine.gateway.http.main"


@pytest.fixture(scope="module")
def port() -> int:
    return free_port()


@pytest.fixture(scope="module")
def lab(tmp_path_factory: pytest.TempPathFactory, port: int) -> Iterator[Lab]:
    """A home whose API opens with the engine."""
    with configured(tmp_path_factory.mktemp("api"), f"[api]\nenabled = true\nport = {port}\n") as lab:
        opened(lab)
        yield lab


def gateway(lab: Lab) -> int:
    """The process of the gateway, once there is one."""
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        if pids := lab.worker_pids(GATEWAY):
            (pid,) = pids
            return pid
        time.sleep(0.02)  # the engine is another process: there is nothing to await
    raise AssertionError("there is no gateway")


def test_who_is_refused(lab: Lab, port: int) -> None:
    url = opened(lab)
    assert url == f"http://127.0.0.1:{port}"
    key = json.loads(lab.marlaas("api", "key", "new", "ada", "--json"))["key"]
    assert ask(url, None)[0] == ask(url, "tml-ada-wrong")[0] == 401
    status, said = ask(url, key)
    assert status == 404 and said["error"]["code"] == "model_not_found"
    lab.marlaas("api", "key", "revoke", key)
    assert ask(url, key)[0] == 401


def test_a_client_is_answered_and_counted(lab: Lab) -> None:
    url = opened(lab)
    made = json.loads(lab.marlaas("api", "key", "new", "bob", "--name", "script", "--json"))
    status, said = ask(url, made["key"], body=CHAT | {"model": "tiny", "max_tokens": 8})
    assert status == 200 and said["choices"][0]["message"]["role"] == "assistant"
    deadline = time.monotonic() + PATIENCE
    while time.monotonic() < deadline:
        keys = json.loads(lab.marlaas("api", "key", "list", "--json"))
        (row,) = [key for key in keys if key["prefix"] == made["prefix"]]
        if row["requests"]:
            break
    used = said["usage"]
    counted = (row["requests"], row["tokens_in"], row["tokens_out"])
    assert counted == (1, used["prompt_tokens"], used["completion_tokens"]) and row["last_use"] is not None


def test_a_gateway_that_is_killed_is_started_again(lab: Lab) -> None:
    url, first = opened(lab), gateway(lab)
    key = json.loads(lab.marlaas("api", "key", "new", "ada", "--json"))["key"]
    os.kill(first, signal.SIGKILL)
    assert ask(url, key)[0] == 404, "whoever connects waits for the next one"
    while (then := gateway(lab)) == first:
        time.sleep(0.02)  # as above
    assert opened(lab) == url and psutil.Process(then).is_running()


def test_closed_means_closed_to_clients(lab: Lab) -> None:
    url = opened(lab)
    lab.marlaas("api", "stop")
    lab.marlaas("api", "status", code=3)
    with pytest.raises(ConnectionRefusedError):
        ask(url, None)
    assert opened(lab) == url and not lab.marlaas("api", "status").startswith("api   closed")


def test_another_port_and_a_port_that_is_taken(lab: Lab, port: int) -> None:
    url = opened(lab)
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        said = lab.marlaas("api", "start", "--port", str(taken.getsockname()[1]), code=2)
    assert "another program has this port" in said and ask(url, None)[0] == 401, "it stays where it is"
    other = json.loads(lab.marlaas("api", "start", "--port", "0", "--json"))["url"]
    assert other != url and ask(other, None)[0] == 401 and opened(lab) == other
    lab.marlaas("api", "start", "--port", str(port))
    assert opened(lab) == url


def test_the_api_comes_back_with_the_engine(lab: Lab) -> None:
    url = opened(lab)
    key = json.loads(lab.marlaas("api", "key", "new", "ada", "--json"))["key"]
    lab.kill_engine()
    control.ensure_running(lab.home)
    assert opened(lab) == url and ask(url, key)[0] == 404
    control.stop(lab.home)
    with pytest.raises(ConnectionRefusedError):
        ask(url, key)
    lab.marlaas("api", "status", code=3)
