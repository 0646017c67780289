"""The log of requests: one line for each, whatever clients send, and no secret in it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marlaas.engine.gateway.http import logs
from marlaas.engine.gateway.http.logs import LONGEST_MODEL, Log, shown_key
from marlaas.engine.gateway.keys import new_episode_key, new_key
from marlaas.engine.gateway.limits import Limits

from .scripted import echo, gateway

CHAT = "/v1/chat/completions"


@pytest.mark.parametrize("tenant", ["ada", "a lab of many words and then some", "x.y_z", "é"])
def test_a_key_is_shown_as_it_is_listed(tenant: str) -> None:
    made = new_key(tenant)
    assert shown_key(made.key) == made.prefix
    assert made.key.startswith(shown_key(made.key)) and len(made.key) - len(shown_key(made.key)) == 37


@pytest.mark.parametrize("key", ["", "sk-proj-abcdefghijklmnopqrstuvwxyz", "tml-x", "tml-ada-" + "x" * 42, "x" * 500])
def test_of_other_keys_the_beginning_is_shown(key: str) -> None:
    assert shown_key(key) == key[:8]


def test_the_key_of_an_episode_keeps_its_secret() -> None:
    key = new_episode_key()
    assert len(key) - len(shown_key(key)) == 37


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


async def test_the_name_of_a_model_that_is_refused_is_cut(tmp_path: Path) -> None:
    log = Log(Limits(log=str(tmp_path / "api.log")))
    line, began = log.begin("/")
    line.model = "x" * 100_000
    log.end(line, began)
    log.close()
    assert len(json.loads((tmp_path / "api.log").read_text())["model"]) == LONGEST_MODEL


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
