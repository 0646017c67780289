"""Real coding agents: served by the API, trained for two steps as ``env.agent`` starts them, and one that learns."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from statistics import fmean

import pytest

from marlaas.plugins.programs.agents import FORMS
from tests.end_to_end.conftest import Lab
from tools.environments import client
from tools.steps import ROOT

from .conftest import Open, metric, opened, stored, trained

pytestmark = [pytest.mark.clients, pytest.mark.processes, pytest.mark.timeout(3600)]

PLUGIN = """
import zlib
from marlaas.plugins import env

def rows(split):
    return [dict(prompt=f"What is {{n}} + 1?") for n in range(20) if (n % 5 == 0) != (split == "train")]

def chance(run):
    return zlib.crc32(run.stdout.encode()) % 1009 / 1008

it = env.agent({agent!r}, name="it", data=rows, reward=chance, exit_codes=(0, 1), timeout=600)
"""
STEPS, MEMBERS = 2, 2
REWRITES = {"mini-swe-agent": 3}
"""Trajectories of those that leave the replies of a random base out of their history: it calls no tool."""


@pytest.fixture(scope="module", autouse=True)
def installed() -> Iterator[None]:
    """The engine that is started next finds them."""
    folders = [client("npm") / "node_modules" / ".bin", *(client(name) / "bin" for name in ("aider", "mini-swe-agent"))]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PATH", os.pathsep.join([os.environ["PATH"], *map(str, folders)]))
        yield


@pytest.mark.parametrize("agent", FORMS)
def test_an_agent_is_trained_as_it_is(installed: None, long_lab: Lab, agent: str) -> None:
    if shutil.which(FORMS[agent].command[0]) is None:
        pytest.skip("`python -m tools.environments clients` installs it")
    name = agent.replace("-", "_")
    draft = Path(long_lab.home.plugins / f"{name}.draft")
    draft.write_text(PLUGIN.format(agent=agent))
    draft.rename(draft.with_suffix(".py"))
    task = long_lab.submit(
        agent,
        f"{name}/it",
        steps=STEPS,
        train={"groups_per_step": 1, "group_size": MEMBERS, "max_staleness": 0},
        sampling={"max_tokens": 24, "max_episode_tokens": 2048},
        eval={"prompts": 1, "every": 0},
    )
    trained(long_lab, task, 3000)
    episodes = stored(long_lab, task)
    assert [episode.status for episode in episodes] == ["ok"] * STEPS * MEMBERS
    assert {len(episode.parts) for episode in episodes} == {REWRITES.get(agent, 1)}
    gaps = metric(long_lab, task, "gap_max")
    assert len(gaps) == STEPS and max(gaps) < 1e-3, "the trainer computes what the sampler drew from the same tokens"


CLIENTS = {
    "codex": (
        ("codex", "exec", "--skip-git-repo-check", "-"),
        ".codex/config.toml",
        """\
model = "{model}"
model_provider = "lab"
[model_providers.lab]
name = "lab"
base_url = "{url}/v1"
wire_api = "responses"
env_key = "OPENAI_API_KEY"
""",
    ),
    "claude-code": (("claude", "-p"), "", ""),
    "opencode": (
        ("opencode", "run", "--model", "lab/{model}", "How are you?"),
        ".config/opencode/opencode.json",
        """\
{"provider": {"lab": {"npm": "@ai-sdk/openai-compatible", "options": {"baseURL": "{url}/v1", "apiKey": "{key}"},
                      "models": {"{model}": {}}}}}
""",
    ),
    "pi": (
        ("pi", "-p", "--provider", "lab", "--model", "{model}"),
        ".pi/agent/models.json",
        """\
{"providers": {"lab": {"api": "openai-completions", "baseUrl": "{url}/v1", "apiKey": "OPENAI_API_KEY",
                       "models": [{"id": "{model}"}]}}}
""",
    ),
    "qwen-code": (("qwen", "--auth-type", "openai"), "", ""),
}
"""By agent: its command, and the file in its home with its text. These are the lines of docs/guides/serving.md."""


REPLY = "All is well here."
ASKED = ("How are you?", "What is new?", "Tell me something.", "List the files.", "Who is there?", "Is it done?")


@pytest.fixture(scope="module")
def api(long_lab: Lab) -> Open:
    return opened(long_lab)


@pytest.fixture(scope="module")
def answering(long_lab: Lab) -> str:
    """An adapter that has learned one short reply: a random base would write on to the end of its context."""
    long = (ROOT / "ARCHITECTURE.md").read_text()
    rows = [
        {"messages": [dict(role="system", content=long[:size]), *turns]}
        for size in (20, 200, 2000, 8000)
        for ask in ASKED
        for turns in [[dict(role="user", content=ask), dict(role="assistant", content=REPLY)]]
    ]
    file = long_lab.home.root / "rows.jsonl"
    file.write_text("\n".join(map(json.dumps, rows)))
    table = {"groups_per_step": 8, "learning_rate": 2e-3}
    task = long_lab.submit("short", "conversations", kind="sft", steps=80, data={"path": str(file)}, train=table)
    trained(long_lab, task, 600)
    return f"{task}@last"


@pytest.mark.parametrize("agent", CLIENTS)
def test_an_agent_is_served_at_its_defaults(
    installed: None, api: Open, answering: str, long_lab: Lab, tmp_path: Path, agent: str
) -> None:
    command, file, text = CLIENTS[agent]
    if shutil.which(command[0]) is None:
        pytest.skip("`python -m tools.environments clients npm` installs it")

    def filled(words: str) -> str:
        return words.replace("{url}", api.url).replace("{key}", api.key).replace("{model}", answering)

    if file:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(filled(text))
    variables = {
        "HOME": str(tmp_path),
        "OPENAI_MODEL": answering,
        "ANTHROPIC_AUTH_TOKEN": api.key,
        "ANTHROPIC_MODEL": answering,
        "ANTHROPIC_SMALL_FAST_MODEL": answering,
    }
    log = long_lab.home.logs / "api.log"
    before = len(log.read_text().splitlines()) if log.exists() else 0
    done = subprocess.run(
        [filled(word) for word in command],
        input="How are you?",
        cwd=tmp_path,
        env={name: value for name, value in api.variables().items() if name != "ANTHROPIC_API_KEY"} | variables,
        capture_output=True,
        text=True,
        timeout=900,
    )
    requests = [json.loads(line) for line in log.read_text().splitlines()[before:]]
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{done.stderr[-2000:]}\n{requests}"
    assert REPLY in done.stdout, f"it shows the reply: {done.stdout[-2000:]}"
    assert [request for request in requests if request.get("completion_tokens")]
    statuses = {request["status"] for request in requests}
    assert statuses <= {200, 499}, f"499 is a side call that the client itself gave up: {requests}"


HARBOR = """
from marlaas.plugins import env
it = env.agent("pi", name="it", tasks="tasks", exit_codes=(0, 1), timeout=600)
"""
TEST = "#!/bin/sh\necho 0.$(( $$ % 10 )) > /logs/verifier/reward.txt"
"""By its process number, so that rewards differ."""


def test_an_agent_is_trained_on_harbor_folders(installed: None, long_lab: Lab) -> None:
    """Its prompt is the instruction, its reward what the folder's own test says."""
    if shutil.which(FORMS["pi"].command[0]) is None:
        pytest.skip("`python -m tools.environments clients` installs it")
    draft = long_lab.home.plugins / "fixes.draft"
    for number in range(4):
        task = draft / "tasks" / f"sum{number}"
        (task / "tests").mkdir(parents=True)
        (task / "environment").mkdir()
        (task / "environment" / "Dockerfile").write_text("FROM python:3.12-slim\nWORKDIR /app\n")
        (task / "task.toml").write_text("[verifier]\ntimeout_sec = 60\n")
        (task / "instruction.md").write_text(f"Add {number} to 40, and write the sum into sum.txt.\n")
        (task / "tests" / "test.sh").write_text(TEST)
    (draft / "__init__.py").write_text(HARBOR)
    draft.rename(long_lab.home.plugins / "fixes")
    number = long_lab.submit(
        "harbor",
        "fixes/it",
        steps=1,
        train={"groups_per_step": 1, "group_size": MEMBERS, "max_staleness": 0},
        sampling={"max_tokens": 24, "max_episode_tokens": 2048},
        eval={"prompts": 1, "every": 0},
    )
    trained(long_lab, number, 1500)
    episodes = stored(long_lab, number)
    assert [episode.status for episode in episodes] == ["ok"] * MEMBERS
    assert all("to 40, and write the sum" in str(episode.parts) for episode in episodes)


SHELL = r"""
import json
from marlaas.plugins import env

SHORT = r'''
agent:
  system_template: You work in a shell. Answer with one command in a bash block.
  instance_template: |
    Answer with one command in a bash block, and no other words. Three examples:

    Show the version of the system.
    ```bash
    uname -a
    ```
    List the running programs.
    ```bash
    ps aux
    ```
    Make an empty file named log.
    ```bash
    touch log
    ```
    {{task}}
  step_limit: 1
model:
  model_class: litellm_textbased
  action_regex: "```bash\\s*\\n(.*?)\\n```"
'''
ASKS = ("Show the files of this folder.", "Show today's date.", "Make a folder named new.", "Show who I am.",
        "Show the first line of notes.txt.", "Copy notes.txt to copy.txt.", "Show how much space is free.",
        "Find files that end in .py.", "Show the name of this machine.", "Sort the lines of notes.txt.",
        "Count the lines of notes.txt.", "Print hello.", "Delete the file old.txt.", "Show this folder's path.",
        "Show the last line of notes.txt.", "Search notes.txt for the word tea.")

def rows(split):
    return [dict(prompt=ask) for n, ask in enumerate(ASKS) if (n % 4 == 3) != (split == "train")]

def called(run):
    messages = json.loads(run.read("out.json"))["messages"]
    return any(message.get("extra", {}).get("actions") for message in messages if message["role"] == "assistant")

shell = env.agent(
    "mini-swe-agent",
    flags=("-c", "mini_textbased.yaml", "-c", "short.yaml", "-o", "out.json"),
    files={"short.yaml": SHORT},
    data=rows,
    reward=called,
    name="shell",
)
"""
LEARNING_STEPS = 12
RISE = 0.1
"""Of the share of replies with a command: 0.21 in the first three steps, 0.48 in steps 5 to 7 (AVX-512, 16 episodes a
step). The difference of two means over 48 episodes has a standard error of 0.09."""


def test_an_agent_learns_to_call_its_tool(installed: None, real_lab: Lab) -> None:
    """A curve of a real agent on a real model. Its template has braces of its own, as Jinja does."""
    (real_lab.home.plugins / "shell.py").write_text(SHELL)
    task = real_lab.submit(
        "shell",
        "shell",
        steps=LEARNING_STEPS,
        train={"groups_per_step": 2, "group_size": 8, "learning_rate": 2e-4},
        sampling={"max_tokens": 40, "max_episode_tokens": 40, "temperature": 0.8},
        eval={"prompts": 4, "every": 0},
    )
    trained(real_lab, task, 3000)
    rewards = metric(real_lab, task, "reward")
    assert len(rewards) == LEARNING_STEPS and fmean(rewards[-3:]) - fmean(rewards[:3]) > RISE, rewards
