"""Ready-made forms, with a program in the agent's place that tells what it was given."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from marlaas.plugins import Environment, env
from marlaas.plugins.programs import ProgramFailed, ProgramRun
from marlaas.plugins.programs.agents import FORMS
from tests.loading import load

from .episodes import episode, result_of, rewards

TELLS = """#!/usr/bin/env python3
import json, os, pathlib, sys
home = pathlib.Path.home()
files = {str(path.relative_to(home)): path.read_text() for path in home.rglob("*") if path.is_file()}
files |= {path.name: path.read_text() for path in pathlib.Path.cwd().iterdir()}
read = open("/dev/stdin").read()
print(json.dumps([sys.argv[1:], read, files, dict(os.environ)]))
"""
PROMPT = "--mend it\n'now'"


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "bin"
    folder.mkdir()
    for form in FORMS.values():
        (folder / form.command[0]).write_text(TELLS)
        (folder / form.command[0]).chmod(0o755)
    monkeypatch.setenv("PATH", os.pathsep.join([str(folder), os.environ["PATH"]]))


async def told(environment: Environment, prompt: str = PROMPT) -> Any:
    """Arguments, standard input, files and variables of the program."""
    runs: list[ProgramRun] = []

    def agent(ep: Any, run: ProgramRun) -> float:
        runs.append(run)
        return 1.0

    judged = environment(agent)
    await result_of(judged, episode(judged, {"prompt": prompt}))
    return json.loads(runs[0].stdout)


@pytest.mark.processes
@pytest.mark.usefixtures("programs")
@pytest.mark.parametrize("name", FORMS)
async def test_an_agent_finds_its_prompt_and_its_model(name: str) -> None:
    arguments, read, files, variables = await told(env.agent(name, flags=["--further"]))
    assert arguments[-1] == "--further"
    assert read == PROMPT or f"--task={PROMPT}" in arguments
    settings = "".join([*files.values(), *arguments, *variables.values()])
    assert "policy" in settings and not [place for place in ("{model}", "{url}", "{key}") if place in settings]
    for file, text in files.items():
        if file.endswith(".json"):
            json.loads(text)


@pytest.mark.processes
@pytest.mark.usefixtures("programs")
async def test_what_is_given_wins_over_the_form() -> None:
    given = env.agent(
        "claude-code",
        files={"~/.claude/settings.json": "{}", "CLAUDE.md": "Be brief, {prompt}."},
        env={"ANTHROPIC_MODEL": "mine", "MORE": "{seed}"},
        stdin="Now: {prompt}",
    )
    _, read, files, variables = await told(given, "mend")
    assert (read, files[".claude/settings.json"], files["CLAUDE.md"]) == ("Now: mend", "{}", "Be brief, {prompt}.")
    assert variables["ANTHROPIC_MODEL"] == "mine" and int(variables["MORE"]) >= 0
    assert variables["ANTHROPIC_DEFAULT_HAIKU_MODEL"] == "policy", "the others of the form stay"


@pytest.mark.processes
@pytest.mark.usefixtures("programs")
async def test_an_agent_in_a_toml_file(tmp_path: Path) -> None:
    path = tmp_path / "codes.toml"
    path.write_text('adapter = "agent"\nagent = "qwen-code"\nreward = "exit"\ntimeout = 9\nflags = ["--x"]\n')
    (codes,) = load(path).values()
    assert (codes.name, codes.timeout, codes.rows, codes.train) == ("qwen-code", 9.0, "task", "main")
    assert (codes.context, env.agent("pi", context=5).context, env.agent("pi", train="all").train) == (32_768, 5, "all")
    assert (await rewards(codes, {"prompt": "mend"})).by_agent == {"agent": 1.0}
    path.write_text('adapter = "agent"\n\nagent = "qwen"\nreward = "exit"\n')
    with pytest.raises(SyntaxError, match="there is no agent 'qwen'; there is qwen-code, ") as caught:
        load(path)
    assert caught.value.lineno == 3


@pytest.mark.parametrize(
    ("declare", "error", "says"),
    [
        (lambda: env.agent("claude"), ValueError, "there is no agent 'claude'; there is claude-code, "),
        (lambda: env.agent(["codex"]), ValueError, "there is no agent"),  # type: ignore[arg-type]
        (lambda: env.agent("codex", flags="--x"), TypeError, "flags are further words of the command"),
        (lambda: env.agent("codex", flags=[1]), TypeError, "flags are further words of the command"),  # type: ignore[list-item]
        (lambda: env.agent("codex", files="a.md"), TypeError, "files must be names beside the plugin"),
        (lambda: env.agent("codex", files=["none.md"]), ValueError, "there is no none.md beside the plugin"),
        (lambda: env.agent("codex", reward=3), TypeError, 'reward is "exit"'),  # type: ignore[arg-type]
    ],
)
def test_mistakes(declare: Any, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        declare()


@pytest.mark.processes
@pytest.mark.parametrize("name", FORMS)
async def test_a_missing_agent_says_how_it_is_installed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    agent = env.agent(name, reward="exit", env={"PATH": "/nowhere"})
    with pytest.raises(ProgramFailed) as caught:
        await rewards(agent, {"prompt": "mend"})
    command, install = FORMS[name].command[0], FORMS[name].install
    says = f"the program {command} is not on the PATH: install it with `{install}`, or name it by its path"
    assert str(caught.value) == says
