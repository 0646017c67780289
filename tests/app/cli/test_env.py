"""The verbs of environments: made, checked, shown, allowed, replayed."""

from __future__ import annotations

import asyncio
import builtins
import json
import unicodedata
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from marlaas.app.cli import terminal
from marlaas.app.operations import commands
from marlaas.app.operations.environments.templates import SHAPES, written
from marlaas.engine.environments.conformance.check import Scope, check as conformance
from marlaas.engine.environments.dependencies import OWN, Requirements, Venv
from marlaas.engine.environments.files import Snapshots, read_source
from marlaas.engine.environments.process.launch import Folders
from marlaas.engine.environments.protocol import EpisodeSpec
from marlaas.engine.environments.service import EnvironmentService
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import TaskSpec
from marlaas.engine.store.store import Store
from marlaas.engine.store.submissions import submit
from marlaas.engine.trajectories import Episode, Group, Span, Split, Trajectory, Transcript, Transcripts
from marlaas.plugins.messages import Ask, Reply, ToolCall

from ..commanding import Commander, FakeEngine, Said
from ..filling import HOSTILE, Filling

SOUND = """
from marlaas.plugins import env

@env
async def sums(ep, digits: int = 6):
    a, b = (ep.rng.randrange(10**digits) for _ in "ab")
    return (await ep.ask(f"{a}+{b}=")).text == str(a + b)
"""

HEAD = "from marlaas.plugins import env\n"

Check = Callable[..., Said]


@pytest.fixture
def check(tmp_path: Path, marlaas: Commander) -> Check:
    """Checks a plugin of that text, which lies in no home."""

    def run(text: str, *words: str) -> Said:
        path = tmp_path / "elsewhere" / "mine.py"
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        return marlaas("env", "check", str(path), "--prompts", "16", *words)

    return run


@pytest.mark.processes
def test_a_sound_file_anywhere(home: Home, check: Check) -> None:
    said = check(SOUND)
    assert said.code == 0 and said.out.startswith("mine/sums: nothing wrong\n  · determinism")
    assert not home.root.exists()


@pytest.mark.processes
def test_all_environments_of_a_plugin(home: Home, marlaas: Commander) -> None:
    home.plugins.mkdir(parents=True)
    (home.plugins / "two.py").write_text(SOUND + SOUND.replace("sums", "more").partition("\n\n")[2])
    said = marlaas("env", "check", "two", "--prompts", "2", "--json", "--config", "digits=2", "--alive", "9").json
    assert said["ok"] and [row["name"] for row in said["environments"]] == ["two/sums", "two/more"]
    assert {"check", "level", "message"} == set(said["environments"][0]["findings"][0])
    mistyped = marlaas("env", "check", "mroe")
    assert mistyped.code == 2 and "Did you mean 'two/more'?" in mistyped.err


@pytest.mark.processes
@pytest.mark.parametrize(
    ("text", "words"),
    [
        (HEAD + "\n@env\nasync def x(ep:\n", "mine.py:4: SyntaxError: "),
        ("x = 1\n", "mine declares no environment"),
    ],
    ids=["syntax", "none"],
)
def test_what_cannot_be_loaded(check: Check, text: str, words: str) -> None:
    said = check(text)
    assert said.code == 1 and said.out.startswith("mine: 1 error\n  ✗ load        mine does not load: ")
    assert words in said.out


@pytest.mark.processes
def test_defects_end_with_code_1_and_hostile_text_is_harmless(check: Check) -> None:
    said = check(
        HEAD + "import random\n@env\nasync def x(ep):\n    await ep.ask(f'\\x1b[2J{random.random()}')\n    return 1\n"
    )
    assert said.code == 1 and "  ✗ determinism The first prompt of train instance 0 changes" in said.out
    assert "  ✗ baseline    The empty reply scores 1.00 on average over 16 instances" in said.out
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs", "Cf") for c in said.out + said.err)


PLUGIN = """
from marlaas.plugins import env

@env
async def repeats(ep, task):
    return (await ep.ask(task["say"])).text == task["say"]
"""


@pytest.fixture
def rows(home: Home, tmp_path: Path) -> Path:
    """Rows that lie sorted by their topic, of which the environment has none of its own."""
    home.plugins.mkdir(parents=True)
    (home.plugins / "repeats.py").write_text(PLUGIN)
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps({"text": f"word {n}", "topic": n // 20}) + "\n" for n in range(80)))
    return path


@pytest.mark.processes
def test_rows_of_a_task_are_checked_before_it_is_submitted(rows: Path, marlaas: Commander) -> None:
    task = rows.with_name("task.toml")
    head = 'tenant = "lab"\nname = "words"\n'
    task.write_text(f'{head}environment = "repeats"\n[data]\npath = "rows.jsonl"\ncolumns = {{ say = "text" }}\n')
    said = marlaas("env", "check", "repeats", "--rows", str(task), "--prompts", "8")
    assert said.code == 0, said.out


@pytest.mark.processes
def test_prompts_of_a_bundled_environment(home: Home, marlaas: Commander) -> None:
    said = marlaas("env", "prompts", "arithmetic", "-n", "2", "--config", "digits=1")
    assert said.code == 0 and said.err == ""
    assert [row for row in said.out.splitlines() if row.startswith("instance")] == ["instance 0", "instance 1"]
    asked = marlaas("env", "prompts", "arithmetic", "-n", "1", "--json").json
    assert asked["environment"] == "arithmetic/arithmetic" and asked["problem"] == ""
    assert asked["prompts"][0]["messages"][0]["role"] == "user"
    path = home.root.parent / "late.py"
    path.write_text(f"{HEAD}@env\nasync def late(ep):\n    raise KeyError('gone')\n")
    said = marlaas("env", "prompts", str(path), "--json")
    assert said.code == 1 and "gone" in said.json["problem"] and "gone" in said.err


def test_rows_that_are_missing_are_a_sentence(rows: Path, marlaas: Commander) -> None:
    said = marlaas("env", "check", "repeats", "--rows", str(rows.with_name("gone.jsonl")))
    assert said.code == 2 and "no rows for 'train': there is no " in said.err
    task = rows.with_name("task.toml")
    task.write_text('tenant = "lab"\nname = "sums"\nenvironment = "arithmetic"\n')
    said = marlaas("env", "check", "repeats", "--rows", str(task))
    assert said.code == 2 and "task.toml: names no rows for repeats/repeats" in said.err


@pytest.mark.parametrize("shape", SHAPES)
def test_a_template_is_written_under_the_name(home: Home, marlaas: Commander, shape: str) -> None:
    said = marlaas("env", "new", "my_game", "--shape", shape)
    assert said.code == 0
    text = (home.plugins / "my_game.py").read_text()
    assert "my_game" in text and "my_env" not in text
    assert len(text.splitlines()) < 50, "a template is read before it is changed"
    assert said.out.splitlines() == [str(path) for path in sorted(home.plugins.iterdir(), key=lambda p: p.suffix)]
    for verb in ("env check my_game", "env play my_game", "submit"):
        assert f"marlaas {verb}" in said.err


@pytest.mark.parametrize("other", ["game.py", "game"])
def test_nothing_is_written_over(home: Home, marlaas: Commander, other: str) -> None:
    home.create()
    taken = home.plugins / other
    taken.mkdir() if other == "game" else taken.write_text("mine")
    said = marlaas("env", "new", "game", "--shape", "rows")
    assert said.code == 2 and "is there already" in said.err and list(home.plugins.iterdir()) == [taken]


@pytest.mark.parametrize("name", ["my-game", "", "class", "../up", "env"])
def test_a_name_must_be_one_and_hide_no_other(home: Home, marlaas: Commander, name: str) -> None:
    said = marlaas("env", "new", "--", name)
    assert said.code == 2 and said.err.startswith("marlaas: ") and not list(home.create().plugins.iterdir())
    assert "would hide it" in marlaas("env", "new", "arithmetic").err


async def answer(ask: Ask) -> Reply:
    """What solves every template for some draws, and breaks none for any."""
    said = ask.messages[-1].content
    if ask.tools:
        return Reply("", "tool", 0, (ToolCall("price", {"item": "ink"}), ToolCall("buy", {"item": "no such thing"})))
    return Reply("print(1)" if "program" in said else "7", "stop", 0)


@pytest.fixture
async def served(tmp_path: Path) -> AsyncIterator[EnvironmentService]:
    """Every template, under a name of its own."""
    folder = tmp_path / "plugins"
    folder.mkdir()
    for shape in SHAPES:
        for file, text in written(f"my_{shape}", shape).items():
            (folder / file).write_text(text)
    service = EnvironmentService([folder], tmp_path / "scratch")
    await asyncio.wait(await service.scan())
    yield service
    await service.stop()


@pytest.mark.processes
async def test_every_template_is_served_and_played(served: EnvironmentService) -> None:
    for shape in SHAPES:
        with await served.bind(f"my_{shape}") as lease:
            config = served.validate(lease.environment, {})
            draws: list[tuple[Split, int]] = [("train", 0), ("train", 1), ("eval", 0), ("eval", 1)]
            specs = [EpisodeSpec(split, index, 0, 0, config) for split, index in draws]
            played = [await served.play(lease, spec, answer) for spec in specs]
        assert [(shape, ended.status, ended.failure) for ended in played] == [(shape, "ok", None)] * len(specs)


@pytest.mark.slow
@pytest.mark.processes
async def test_every_template_is_found_sound(served: EnvironmentService) -> None:
    for shape in SHAPES:
        found = await conformance(served, f"my_{shape}", scope=Scope(prompts=16))
        assert [(shape, finding) for finding in found if finding.level != "note"] == []


WITH_LIBRARIES = '# /// script\n# dependencies = ["b", "A==1"]\n# ///\n'


@pytest.fixture
def uv(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """One which says something, makes the folder, and installs nothing."""
    uv = tmp_path / "uv"
    _script(
        uv,
        "for last; do :; done\n"
        f"[ $1 = venv ] && mkdir -p $last/bin && ln -s {OWN.executable} $last/bin/python\n"
        r"printf 'working \033[2J on it\n'",
    )
    monkeypatch.setattr("uv.find_uv_bin", lambda: str(uv))
    monkeypatch.setenv("UV_DEFAULT_INDEX", "https://me:secret@wheels.example/simple")
    return uv


def _script(path: Path, text: str) -> None:
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)


@pytest.fixture
def venv(home: Home) -> Venv:
    """The environment of the plugin ``chain``, which is in the home's folder."""
    home.create()
    (home.plugins / "chain.py").write_text(WITH_LIBRARIES)
    return Venv.of(Requirements(("a==1", "b")), OWN, home.venvs)


def type_answer(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(terminal, "has_terminal", lambda: True)
    monkeypatch.setattr(builtins, "input", lambda prompt: text)


@pytest.mark.processes
def test_shows_the_list_asks_and_installs(
    uv: Path, venv: Venv, marlaas: Commander, monkeypatch: pytest.MonkeyPatch
) -> None:
    type_answer(monkeypatch, "y")
    said = marlaas("env", "allow", "chain/some_environment")
    assert said.code == 0 and venv.built and venv.allowed
    assert [text.strip() for text in said.out.splitlines()] == [
        f"chain needs, on Python {OWN.version}:",
        "a==1",
        "b",
        "with what they need themselves, from the index https://wheels.example/simple.",
        f"Place: {venv.folder}",
    ]
    assert "working on it" in said.err and "\x1b" not in said.err and "serves chain at once" in said.err

    again = marlaas("env", "allow", "chain")
    assert again.code == 0 and "nothing is to be done" in again.err
    assert "arithmetic needs no libraries" in marlaas("env", "allow", "arithmetic").err


@pytest.mark.processes
def test_nothing_is_installed_without_consent(
    uv: Path, venv: Venv, marlaas: Commander, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = marlaas("env", "allow", "chain")
    assert said.code == 2 and "--yes" in said.err and "a==1" in said.out and not venv.allowed, "nobody can be asked"
    type_answer(monkeypatch, "")
    said = marlaas("env", "allow", "chain")
    assert said.code == 1 and "Nothing was installed." in said.err and not venv.allowed and not venv.built


@pytest.mark.processes
def test_a_build_that_fails_says_why_and_where(uv: Path, venv: Venv, marlaas: Commander) -> None:
    _script(uv, 'echo "error: no luck"; exit 1')
    said = marlaas("env", "allow", "chain", "--yes")
    assert said.code == 1 and f"cannot be installed: no luck (log: {venv.log})" in said.err
    assert venv.allowed and not venv.built


PARAMETERS: list[dict[str, Any]] = [
    {"name": "digits", "type": "int", "default": 2, "required": False, "low": 1, "high": 9, "choices": []},
    {"name": "level", "type": "str", "default": "easy", "required": False, "choices": ["easy", "hard"]},
    {"name": "words", "type": "json", "default": None, "required": True},
]


@pytest.fixture
def filled(filling: Filling) -> Filling:
    """Two plugins; one of them with two environments, one of these broken."""
    for name, state, message in (
        ("games/guess", "ready", ""),
        ("games/nim", "stale", "SyntaxError: invalid syntax"),
        ("arithmetic/arithmetic", "ready", ""),
    ):
        filling.environment(name, state, message)
    filling.execute("UPDATE environments SET parameters = ?", json.dumps(PARAMETERS))
    return filling


def test_show_prints_all_that_is_known(home: Home, filled: Filling, marlaas: Commander) -> None:
    log = Folders.of(home.scratch, "games").log
    log.parent.mkdir(parents=True)
    log.write_text("".join(f"line {n}\n" for n in range(100)))
    said = marlaas("env", "show", "nim")
    assert said.code == 0
    for words in (
        "games/nim: Sums of whole numbers.",
        "stale: an older version serves",
        "arithmetic.py:7: SyntaxError: invalid syntax",
        "digits: int, 1..9, default 2",
        "words: json, required",
        "line 99",
    ):
        assert words in said.out
    assert "line 94" not in said.out
    assert [row["name"] for row in marlaas("env", "list", "GUESS", "--json").json] == ["games/guess"]
    assert [row["name"] for row in marlaas("env", "show", "games", "--json").json] == ["games/guess", "games/nim"]
    assert marlaas("env", "log", "guess", "-n", "2").out == "line 98\nline 99\n"
    assert "has printed nothing" in marlaas("env", "log", "arithmetic").err


@pytest.mark.parametrize("verb", ["show", "log"])
def test_hostile_text_is_text(home: Home, filling: Filling, marlaas: Commander, verb: str) -> None:
    filling.environment("evil/evil", "broken", HOSTILE.replace("\ud800", ""))
    filling.execute("UPDATE environments SET description = ?", "a\x1b[31m\nb\x1b]0;owned\x07")
    log = Folders.of(home.scratch, "evil").log
    log.parent.mkdir(parents=True)
    log.write_bytes(b"\x1b[2Jgone\xff\x00\n\x9b31m")
    said = marlaas("env", verb, "evil")
    assert said.code == 0 and "gone" in said.out
    assert all(c == "\n" or unicodedata.category(c) not in ("Cc", "Cs") for c in said.out + said.err)


def test_reload_asks_the_engine(
    filled: Filling, marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers = iter([{1: ""}, {2: "games.py:3: NameError."}, {}])
    monkeypatch.setattr(commands, "wait_for_outcomes", lambda reader, sent: next(answers))
    assert marlaas("env", "reload", "nim").err == "The plugin games was read again; it serves.\n"
    assert "games.py:3" in marlaas("env", "reload", "games").err
    assert marlaas("env", "reload", "games").code == 3
    engine.living = False
    assert "No engine serves" in marlaas("env", "reload", "games").err


COUNTING = """
from marlaas.plugins import env

@env
async def counting(ep, first: int = 0):
    reply = await ep.ask(f"say {ep.index + first}")
    return float(reply.text == str(ep.index + first))
"""

Save = Callable[[str], Path]


@pytest.fixture
def save(home: Home) -> Save:
    """Puts an edition of the environment into the home."""

    def write(text: str) -> Path:
        path = home.plugins / "counting.py"
        path.write_text(text)
        return path

    return write


@pytest.fixture
def replay(home: Home, marlaas: Commander, save: Save) -> Callable[..., Said]:
    """Three groups of two, of whom the first said what it was told to."""
    home.create()
    store = Store(home.database, "tiny")
    submit(home.database, [submission(TaskSpec("lab", "numbers", "counting"))])
    policy = store.versions.policy(1, "policy", {})
    version = read_source(save(COUNTING)).version
    for number in range(3):
        said = (str(number), "no")
        episodes = tuple(episode(member, float(member == 0)) for member in range(2))
        transcripts: Transcripts = {
            (member, "agent", 0): Transcript((("user", f"say {number}"), ("assistant", text)))
            for member, text in enumerate(said)
        }
        store.experience.add_group(policy, "train", Group(number, number, 0, version, episodes), transcripts)
    store.close()
    return lambda *words: marlaas("env", "replay", "1", *words)


def episode(member: int, reward: float) -> Episode:
    arrays = np.zeros(3, np.int32), np.ones(3, np.uint8), np.zeros(3, np.float32)
    return Episode(member, "ok", (Trajectory("agent", *arrays, spans=(Span(1, 3, 0),), reward=reward),))


@pytest.mark.processes
def test_changed_rewards_are_listed(replay: Callable[..., Said], save: Save) -> None:
    save(COUNTING.replace("float(", "0.25 * float("))
    said = replay()
    assert said.code == 0 and "6 rewards: 3 unchanged, 3 changed" in said.out and "0.5 before, 0.125 after" in said.out
    rows = [text.split() for text in said.out.splitlines() if "agent" in text]
    assert rows == [["-", str(group), "0", "agent", "1", "0.25", "changed"] for group in range(3)]
    document = replay("--last", "1", "--json").json
    assert (document["rewards"], document["changed"], document["mean_after"]) == (2, 1, 0.125)
    assert document["environment"] == "counting/counting" and [document["version"]] != document["recorded_versions"]
    assert [(one["group"], one["old"], one["new"]) for one in document["verdicts"]] == [(2, 1.0, 0.25)]


@pytest.mark.processes
def test_an_earlier_version(replay: Callable[..., Said], save: Save, home: Home) -> None:
    source = read_source(save(COUNTING))
    Snapshots(home.scratch / "snapshots").write(source)
    save(COUNTING.replace("float(", "0.25 * float("))
    document = replay("--version", source.version[:6], "--json").json
    assert (document["version"], document["unchanged"]) == (source.version, 6)
    said = replay("--version", "nothing")
    assert said.code == 2 and "No version that is kept begins with 'nothing'" in said.err


@pytest.mark.processes
def test_what_cannot_be_replayed(replay: Callable[..., Said], save: Save, marlaas: Commander) -> None:
    save(COUNTING.replace("return", "return 1 / 0 +"))
    said = replay()
    assert said.code == 0 and "6 failing" in said.out and "ZeroDivisionError: division by zero" in said.out
    save(COUNTING + "def broken(:")
    said = replay()
    assert said.code not in (0, 3) and "counting.py" in said.err and "Traceback" not in said.err
    save(COUNTING.replace("first: int = 0", "first: int"))
    said = replay()
    assert said.code == 2 and "refuses what the task is played with" in said.err and "needs 'first'" in said.err
    assert marlaas("env", "replay", "9").code == 2


def test_what_cannot_be_allowed(venv: Venv, home: Home, marlaas: Commander) -> None:
    said = marlaas("env", "allow", "chian")
    assert said.code == 2 and "Did you mean 'chain'?" in said.err
    (home.plugins / "chain.py").write_text(WITH_LIBRARIES.replace("==1", "=1"))
    said = marlaas("env", "allow", "chain")
    assert said.code == 2 and "chain.py:2: 'A=1' is no requirement" in said.err
