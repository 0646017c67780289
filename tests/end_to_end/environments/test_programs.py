"""A real engine trains what a program asks over HTTP at the address of its episode."""

from __future__ import annotations

import json
import sqlite3

import pytest

from ..conftest import Lab

pytest.importorskip("starlette")
pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PLUGIN = '''
import json
import os
import subprocess
import sys
from marlaas.plugins import env

PROGRAM = """
import json, os, sys, urllib.request

def chat(messages, **wishes):
    body = json.dumps({"model": "any", "messages": messages, "temperature": 0.1, **wishes}).encode()
    headers = {"Authorization": "Bearer " + os.environ["OPENAI_API_KEY"], "Content-Type": "application/json"}
    request = urllib.request.Request(os.environ["OPENAI_BASE_URL"] + "/chat/completions", body, headers)
    with urllib.request.urlopen(request) as answer:
        return json.load(answer)["choices"][0]["message"]

question = {"role": "user", "content": sys.argv[1]}
first = chat([question], max_tokens=4)
again = chat([question, first, {"role": "user", "content": "again"}], max_tokens=4)
print(json.dumps([first["content"], again["content"]]))
"""

@env
def asking_program(ep):
    """A program of its own asks twice, and is paid for digits."""
    endpoint = ep.endpoint()
    question = f"{ep.rng.randint(1, 9)}+{ep.rng.randint(1, 9)}="
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, question],
        env=os.environ | endpoint.environment(), stdout=subprocess.PIPE, check=True, text=True,
    )
    said = "".join(json.loads(done.stdout))
    return sum(letter == "1" for letter in said) / 8
'''


SPANS = """
    SELECT j.spans FROM trajectories j JOIN groups g ON g.id = j."group" JOIN policies p ON p.id = g.policy
    WHERE p.task = ?
"""


def test_a_program_learns_over_http(lab: Lab) -> None:
    lab.home.plugins.mkdir(exist_ok=True)
    (lab.home.plugins / "asking_program.py").write_text(PLUGIN)
    task = lab.submit(
        "asking program",
        "asking_program",
        steps=6,
        train={"groups_per_step": 2, "group_size": 6, "learning_rate": 0.02},
        eval={"prompts": 4, "every": 0},
    )
    lab.marlaas("wait", str(task))
    shown = lab.show(task)
    assert (shown["state"], shown["step"]) == ("done", 6)
    first, last = (row["score"] for row in shown["eval"] if not row["suite"])
    assert last > first, "it has learned"
    with sqlite3.connect(f"file:{lab.home.database}?mode=ro", uri=True) as connection:
        spans = [json.loads(row[0]) for row in connection.execute(SPANS, [task])]
        events = [row[0] for row in connection.execute("SELECT message FROM events WHERE task = ?", [task])]
    connection.close()
    assert spans and all(len(one) == 2 for one in spans)
    assert any("'temperature', which is ignored in training" in message for message in events)
    lab.sound(task)
