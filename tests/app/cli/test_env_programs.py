"""env play and env check of environments that external programs play, without an engine."""

from __future__ import annotations

import contextlib
import io
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from marlaas.app.operations.environments.peeking import environments_alone, troubles
from marlaas.app.operations.submitting import checked, loaded
from marlaas.engine.gateway import api as processes
from marlaas.engine.home.paths import Home

from ..commanding import Commander

pytest.importorskip("starlette")
pytestmark = pytest.mark.processes

ENTRY = [sys.executable, "-P", "-m", "marlaas.app.cli.main"]
AGENTS = '''
from marlaas.plugins import env

AGENT = """
import json, os, sys
from urllib.request import Request, urlopen

def ask(text):
    body = {"model": "any", "messages": [{"role": "user", "content": text}], "max_tokens": 8}
    headers = {"Content-Type": "application/json", "Authorization": "Bearer " + os.environ["OPENAI_API_KEY"]}
    url = os.environ["OPENAI_BASE_URL"] + "/chat/completions"
    with urlopen(Request(url, json.dumps(body).encode(), headers)) as answer:
        return json.load(answer)["choices"][0]["message"]["content"]

print("heard", ask(sys.argv[1]))
print("heard", ask(sys.argv[2]))
"""
DEAF = "trap '' TERM INT; sleep 600 & while :; do sleep 0.1; done"


@env.program(["python", "-c", AGENT, "{prompt}", "bye"], reward="exit", timeout=60)
def asks(ep, words: int = 1):
    return "word " * words


roomy = env.program(["python", "-c", AGENT, "hi", "a longer one"], name="roomy", reward="exit", context=800)
mute = env.program("echo hello", name="mute", reward="exit")
deaf = env.program(["bash", "-c", DEAF], name="deaf", reward="exit")
'''


@pytest.fixture
def agents(tmp_path: Path) -> str:
    path = tmp_path / "agents.py"
    path.write_text(AGENTS)
    return str(path)


def test_a_person_answers_a_program(home: Home, agents: str) -> None:
    command = [*ENTRY, "--home", str(home.root), "env", "play", f"{agents}/asks"]
    played = subprocess.run(command, input="hello\nthere\n", capture_output=True, text=True, timeout=50)
    assert played.returncode == 0 and not played.stderr
    turns = (
        "user       word\nyou>       hello\n--- agent, conversation 1\nuser       bye\nyou>       there\nThe episode"
    )
    assert turns in played.stdout
    assert "reward     1\nlogged     exit_code 0, " in played.stdout
    assert "stdout heard hello\n           heard there\n" in played.stdout


def test_a_program_that_never_asks_is_named(marlaas: Commander, agents: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO())
    said = marlaas("env", "play", f"{agents}/mute")
    assert said.code == 0 and "stdout hello" in said.out
    assert said.err == "The program never asked the model: nothing can be learned from that.\n"
    monkeypatch.setattr(processes, "NEEDS", ("starlette", "no_such_package"))
    for verb in ("play", "check"):
        said = marlaas("env", verb, f"{agents}/mute")
        assert said.code == 2 and "needs no_such_package, which is not installed" in said.err
        assert "make install" in said.err and not said.out


def test_a_check_plays_a_program_and_says_its_room(marlaas: Commander, agents: str) -> None:
    said = marlaas("env", "check", f"{agents}/asks")
    assert said.code == 0 and "· program     Given the answer 'OK', it ended with exit code 0 after " in said.out
    assert "· room        Its first prompt has 8 tokens of this home's base; 504 of 512 are left" in said.out
    said = marlaas("env", "check", f"{agents}/asks", "--config", "words=120")
    assert said.code == 1 and "✗ room        Its first prompt has 603 tokens; the context is 512: write " in said.out
    assert "`context = 1024` under [rollout] in marlaas.toml and start the engine again; that takes" in said.out
    said = marlaas("env", "check", f"{agents}/roomy")
    asks = "! room        It asks for a context of 800 tokens; the context is 512: write `context = 1024` under"
    assert said.code == 0 and asks in said.out
    said = marlaas("env", "check", f"{agents}/mute")
    assert said.code == 1 and "✗ program     The program never asks the model" in said.out


def test_a_submission_shows_and_tries_programs(home: Home, marlaas: Commander, tmp_path: Path) -> None:
    home.create()
    (home.plugins / "agents.py").write_text(AGENTS)
    task = tmp_path / "task.toml"
    task.write_text('tenant = "me"\nname = "mine"\nenvironment = "agents/asks"\nsteps = 1\n')
    said = marlaas("submit", "--check", str(task))
    assert said.code == 0 and "\nprompt 1 of agents/asks\n  user       word\n" in said.out
    assert "endpoint" not in said.out + said.err
    found = troubles(home, checked(home, loaded(home, [task])[0]), environments_alone(home, ["agents"]))
    assert found == {}
    task.write_text(task.read_text().replace("asks", "mute"))
    found = troubles(home, checked(home, loaded(home, [task])[0]), environments_alone(home, ["agents"]))
    assert "never asks the model" in found["agents/mute"].message


def name_of(process: psutil.Process) -> str:
    with contextlib.suppress(psutil.NoSuchProcess):
        return process.name()
    return ""


@pytest.mark.parametrize("verb", ["play", "check"])
def test_ctrl_c_ends_a_program_that_ignores_it(home: Home, agents: str, verb: str) -> None:
    command, pipe = [*ENTRY, "--home", str(home.root), "env", verb, f"{agents}/deaf"], subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True) as process:
        top = psutil.Process(process.pid)
        while not any(name_of(child) == "sleep" for child in top.children(recursive=True)):
            assert process.poll() is None
        children = top.children(recursive=True)
        process.send_signal(2)
        assert process.wait(50) == 130
    _, alive = psutil.wait_procs(children, timeout=50)
    assert not alive
