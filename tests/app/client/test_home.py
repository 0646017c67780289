"""The Python client gives rows and sentences, and never prints."""

from __future__ import annotations

import linecache
from dataclasses import FrozenInstanceError
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from marlaas import plugins
from marlaas.app.client import Home, MarlaasError, Task
from marlaas.app.operations import commands
from marlaas.engine.errors import AdapterError, ConfigError, EngineUnreachable, UnknownTask
from marlaas.engine.home import paths

from ..commanding import Commander, FakeEngine
from ..filling import HOSTILE, Filling

TASK = {"tenant": "bio", "name": "sums", "environment": "arithmetic", "steps": 5}


def test_an_empty_home(home: paths.Home) -> None:
    client = Home(home.root)
    assert client.tasks() == () and client.environments() == () and client.events() == () and client.engine() is None
    with pytest.raises(UnknownTask, match="There is no task 1"):
        client.task(1)
    assert not home.root.exists(), "looking makes no home"
    assert Home().folder == home.root and repr(client) == f"Home({str(home.root)!r})"


CELL = """
import json
import random as dice

GREETING = {"de": "Hallo", "en": ["Hello"]}


def clean(text):
    return dice.choice([text.strip()])


def worth(text):
    return float(clean(text) in GREETING["en"] or worth("Hello"))


async def greets(ep, loud: bool = False):
    said = await ep.ask(json.dumps(GREETING))
    return worth(said.text)
"""


def cell(text: str, **names: object) -> dict[str, Any]:
    """The names after a notebook has run a cell: its lines are known to Python, as in IPython."""
    file = f"<cell {len(linecache.cache)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(keepends=True), file)
    space: dict[str, Any] = {"__name__": "__main__", **names}
    exec(compile(text, file, "exec"), space)
    return space


def test_a_function_of_a_notebook_is_a_plugin(home: paths.Home) -> None:
    client = Home(home.root)
    made = client.add_environment(cell(CELL)["greets"])
    assert made.name == "greets/greets" and made.path == home.plugins / "greets.py"
    assert made.path.read_text() == made.source and "def clean" in made._repr_html_()
    space = cell(made.source)
    assert space["greets"].name == "greets" and [own.name for own in space["greets"].parameters] == ["loud"]
    assert space["worth"](" Hello ") == 1.0 and space["GREETING"] == {"de": "Hallo", "en": ["Hello"]}
    shown = client.add_environment(cell("class Says:\n    async def play(self, ep): return 1.0\n")["Says"])
    assert shown.source.endswith("@env\nclass Says:\n    async def play(self, ep): return 1.0\n")
    changed = cell(CELL.replace("Hallo", "Moin").replace("async def", "@env(timeout=5)\nasync def"), env=plugins.env)
    again = client.add_environment(changed["greets"])
    assert "Moin" in again.path.read_text() and again.source.count("@env") == 1 and "timeout=5" in again.source


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("it = lambda ep: 1.0", "A lambda has no name"),
        ("it = 7", "a function or a class, not int"),
        ("handle = open(__import__('os').devnull)\ndef it(ep): return handle", "'handle', a TextIOWrapper .* no file"),
        ("def it(ep): return unheard(ep)", "uses 'unheard', which is not defined"),
        ("exec('def it(ep): return 1.0')", "it has no source"),
        ("def arithmetic(ep): return 1.0\nit = arithmetic", "a plugin 'arithmetic' that was not written from Python"),
    ],
)
def test_what_no_file_can_hold_is_refused(home: paths.Home, text: str, says: str) -> None:
    home.create()
    (home.plugins / "arithmetic.py").write_text("# somebody's\n")
    space = cell(text)
    with pytest.raises(ConfigError, match=says):
        Home(home.root).add_environment(space["it"])
    if "handle" in space:
        space["handle"].close()


def test_metrics_are_columns(home: paths.Home, filling: Filling) -> None:
    filling.engine()
    filling.task("bio", "one", made=12)
    task = Task(1, Home(home.root))
    assert task == 1 and task.row.name == "one" and "one" in task._repr_html_()
    assert task.metrics["step"].tolist() == list(range(1, 13)) and len(task.metrics["reward"]) == 12
    assert task.metrics["reward"].dtype.kind == "f" and task.rollouts(limit=1)[0].turns


def test_a_mistyped_folder_is_refused_as_by_the_verbs(marlaas: Commander, filling: Filling, tmp_path: Path) -> None:
    filling.task("bio", "one")
    (tmp_path / "notes.txt").touch()
    for folder in (tmp_path / "hom", tmp_path / "notes.txt"):
        with pytest.raises(ConfigError) as refused:
            Home(folder)
        said = marlaas("--home", str(folder), "list").err
        assert refused.value.message in said and str(refused.value.hint) in said
    assert len(Home(str(tmp_path / "home")).tasks()) == 1


def test_looking(home: paths.Home, filling: Filling) -> None:
    filling.engine()
    filling.environment()
    filling.task("bio", "one", made=12)
    filling.task("lab", "two", state="done", made=3)
    filling.event("began", 1)
    client = Home(home.root)
    assert [task.name for task in client.tasks()] == ["one", "two"]
    assert [task.id for task in client.tasks(tenant="lab", state="done")] == [2] and client.tasks(family="x") == ()
    assert [step.step for step in client.metrics(1, after=9)] == [10, 11, 12]
    assert client.metrics(1)[0].metrics["gap"] == client.metrics(1)[0].metrics["gap_mean"] == 0.0004
    assert client.metrics(1)[0].metrics["tokens"] == 1480.0 and client.evals(1)[-1].step == 12
    newest, *_, oldest = client.rollouts(1)
    assert newest.id > oldest.id and newest.turns[1].text == "42" and client.rollouts(1, before=oldest.id) == ()
    assert [version.number for version in client.adapters(1)] == [12, 11] and client.config(1) == {"name": "one"}
    assert [event.message for event in client.events("one")] == ["began"]
    assert client.task("two").id == 2 and client.task("bio/one").id == 1 and client.evals("one") == client.evals(1)
    assert client.environments()[0].name == "arithmetic" and client.engine() is not None
    with pytest.raises(FrozenInstanceError):
        client.task(1).state = "done"  # type: ignore[misc]
    for ask in (client.metrics, client.evals, client.rollouts, client.adapters, client.config):
        with pytest.raises(MarlaasError, match="There is no task 9"):
            ask(9)


def test_submitting_tables_files_and_sweeps(
    home: paths.Home, filling: Filling, engine: FakeEngine, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    filling.environment()
    engine.living = False
    file = tmp_path / "task.toml"
    file.write_text('tenant = "bio"\nname = "file"\nenvironment = "arithmetic"\n', encoding="utf-8")
    client = Home(home.root)
    sweep = TASK | {"train": {"seed": [1, 2], "clip_low": None}, "environment_config": {"digits": 3}}
    assert client.submit(file, sweep) == [1, 2, 3] and engine.asked == ["start"]
    assert [task.name for task in client.tasks(family="sums")] == ["sums [seed=1]", "sums [seed=2]"]
    assert client.config(3)["environment_config"] == {"digits": 3}
    assert capsys.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (TASK | {"stepps": 3}, "the task: unknown key 'stepps'"),
        (TASK | {"environment": "arithmetik"}, "There is no environment 'arithmetik'"),
        (TASK | {"environment_config": {"digits": "two"}}, "must be a whole number from 1 to 9, not 'two'"),
        (TASK | {"environment_config": {"digits": {1, 2}}}, "cannot be written as TOML"),
        ({}, "'tenant' is missing"),
    ],
)
def test_what_cannot_be_is_a_sentence_and_adds_nothing(
    home: paths.Home, filling: Filling, engine: FakeEngine, table: dict[str, object], sentence: str
) -> None:
    filling.environment()
    client = Home(home.root)
    with pytest.raises(ConfigError, match=sentence):
        client.submit(TASK, table)
    assert client.tasks() == ()


def test_waiting(home: paths.Home, filling: Filling, engine: FakeEngine) -> None:
    filling.task(state="done", made=2)
    filling.task(state="paused", reason="the disk is full")
    filling.task(state="running")
    said: list[str] = []
    done, stuck, running = Home(home.root).wait(1, 2, 3, timeout=0, progress=said.append)
    assert done.state == "done" and stuck.stuck and running.unfinished and len(said) == 3


def test_steering(home: paths.Home, filling: Filling, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    filling.task()
    client = Home(home.root)
    answer = "A task that is done cannot be paused."
    clock = iter(range(1000))

    def obey(seconds: float) -> None:
        filling.execute("UPDATE commands SET done = 1, outcome = CASE kind WHEN 'pause' THEN ? ELSE '' END", answer)

    wait = partial(commands.wait_for_outcomes, sleep=obey, clock=lambda: float(next(clock)))
    monkeypatch.setattr(commands, "wait_for_outcomes", wait)
    for act in (client.resume, client.retry, client.cancel):
        act(1)
    with pytest.raises(ConfigError, match=f"Task 1: {answer}"):
        client.pause(1, 1)
    engine.living = False
    with pytest.raises(EngineUnreachable, match="No engine serves"):
        client.pause(1)


def test_the_table_of_a_notebook_is_safe(home: paths.Home, filling: Filling) -> None:
    filling.task(HOSTILE, "<script>alert(1)</script>", "<b>", reason=HOSTILE * 9, made=1)
    html = Home(home.root).tasks()._repr_html_()
    assert "&lt;script&gt;" in html and "<script" not in html and "<b>" not in html
    assert "\x1b" not in html and "\u202e" not in html and html.count("<tr>") == 2
    assert "and 4 more" in type(Home(home.root).tasks())([*Home(home.root).tasks()] * 204)._repr_html_()


def test_estimating_submits_nothing(home: paths.Home, filling: Filling) -> None:
    filling.task(made=12)
    config = '{"train": {"groups_per_step": 8, "group_size": 8}, "sampling": {"max_tokens": 32}}'
    filling.execute("UPDATE tasks SET started = created, config = ?", config)
    estimates = Home(home.root).estimate(TASK, TASK | {"environment": "guess"})
    known, unknown = estimates.tasks
    assert known.time is not None and known.time.seconds == pytest.approx(5 * 0.41) and unknown.time is None
    assert estimates.seconds is None and estimates.disk > 0 and len(Home(home.root).tasks()) == 1


def test_exporting_what_is_not_there(home: paths.Home, filling: Filling, tmp_path: Path) -> None:
    filling.task(made=2)
    client = Home(home.root)
    with pytest.raises(AdapterError, match="has no version '7' on disk"):
        client.export(1, tmp_path / "out", version=7)
    with pytest.raises(UnknownTask):
        client.export(2, tmp_path / "out")


def test_the_engine_is_started_and_stopped(home: paths.Home, engine: FakeEngine) -> None:
    client = Home(home.root)
    client.start_engine()
    assert client.stop_engine() and not client.stop_engine() and engine.asked == ["start", "stop", "stop"]
