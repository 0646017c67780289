"""Programs behind bwrap, which reach the model and nothing else: a real engine, gateway and forwarder."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from marlaas.engine.environments.process.launch import obstacle

from ..conftest import Lab, configured

pytest.importorskip("starlette")
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

AGENT = """\
import json, os, socket, sys, threading, urllib.request

def ask(messages, **more):
    body = json.dumps({"model": "any", "messages": messages, "max_tokens": 4, **more}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    return urllib.request.urlopen(urllib.request.Request(url, body, headers))

def stream(messages, found):
    text = ""
    for line in ask(messages, stream=True):
        if line.startswith(b"data: {"):
            text += json.loads(line[6:])["choices"][0]["delta"].get("content") or ""
    found.append(text)

def reached(host, port):
    try:
        socket.create_connection((host, port), 1).close()
    except OSError:
        return 0
    return 1

begun = [{"role": "user", "content": "2+3="}]
begun.append(json.load(ask(begun))["choices"][0]["message"])
begun.append({"role": "user", "content": "and on"})
found = []
threads = [threading.Thread(target=stream, args=(begun, found)) for _ in range(3)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
assert len(found) == 3
open_ports = reached("127.0.0.1", int(sys.argv[1])) + reached("10.0.0.1", 80)
json.dump({"reward": len(set("".join(found))) / 12, "reached": open_ports}, open("reward.json", "w"))
"""
PLUGIN = """\
adapter = "program"
command = "python agent.py PORT"
reward  = "reward.json"
name    = "asking"
timeout = 60

[files]
"agent.py" = '''
%s'''
%s"""
NETWORK = "\n[tool.marlaas]\nnetwork = false\n"
SPANS = """
    SELECT j.spans FROM trajectories j JOIN groups g ON g.id = j."group" JOIN policies p ON p.id = g.policy
    WHERE p.task = ?
"""


@pytest.fixture(params=["sandbox", "network"])
def confined(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """Homes in which the plugin is behind bwrap: as all are, or as it says of itself."""
    if reason := obstacle():
        pytest.skip(reason)
    everywhere = request.param == "sandbox"
    with configured(tmp_path, "[environments]\nsandbox = true\n" if everywhere else "") as lab:
        url = json.loads(lab.marlaas("api", "start", "--port", "0", "--json"))["url"]
        text = PLUGIN % (AGENT, "" if everywhere else NETWORK)
        lab.home.plugins.mkdir(exist_ok=True)
        (lab.home.plugins / "asking.toml").write_text(text.replace("PORT", str(urlsplit(url).port)))
        yield lab


def test_a_program_without_a_network_is_trained(confined: Lab) -> None:
    """Also by streams side by side; the port at which the engine's gateway listens is closed to it."""
    task = confined.submit("asking", "asking", steps=2, train={"groups_per_step": 1, "group_size": 3})
    confined.marlaas("wait", str(task))
    shown = confined.show(task)
    assert (shown["state"], shown["step"]) == ("done", 2), shown
    with sqlite3.connect(f"file:{confined.home.database}?mode=ro", uri=True) as connection:
        spans = sorted(len(json.loads(row[0])) for row in connection.execute(SPANS, [task]))
        parts = [json.loads(row[0]) for row in connection.execute("SELECT parts FROM trajectories")]
    connection.close()
    assert spans and set(spans) == {1, 2}, "two of three that went on at once are forks"
    assert any(parts) and not any(one.get("reached") for one in parts), parts
    confined.sound(task)
