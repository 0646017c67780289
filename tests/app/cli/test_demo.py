"""The demo: a home of its own, an earlier run goes on, one JSON object at the end, and its engine stopped."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from marlaas.app import output
from marlaas.app.cli import demo
from marlaas.app.operations.commands import Follower
from marlaas.app.operations.submitting import unfinished_run
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.queue.submission.taskfile import demo_tasks
from marlaas.engine.store import submissions
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TaskRow

from ..commanding import Commander, FakeEngine
from ..filling import Filling


def finish(filling: Filling, state: str = "done") -> None:
    """What an engine would have done to the demo's tasks."""
    for task, _ in enumerate(demo_tasks(), start=1):
        policy = filling.insert("policies", task=task, name="policy", config="{}", step=60)
        for step, score, version in ((0, 0.4, "old"), (0, 0.3, "new"), (60, 0.9, "new")):
            filling.insert(
                "evals",
                policy=policy,
                step=step,
                environment_version=version,
                series=version,
                score=score,
                n=64,
                floor=0.05,
                metrics=json.dumps({"lenient": score}),
                created=1.0,
            )
        filling.insert("metrics", policy=policy, step=1, name="gap_max", value=0.002)
        filling.insert("metrics", policy=policy, step=2, name="gap_max", value=0.001)
        for step in (1, 2):
            filling.insert("steps", policy=policy, number=step, version=1, created=1.0, seconds=1.0)
    filling.execute("UPDATE tasks SET state = ?, seconds = 90", state)


@pytest.fixture
def trained(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if waiting had let the engine train."""
    follow = Follower.follow

    def train_and_follow(self: Follower, timeout: float | None = None, interval: float = 1.0) -> list[TaskRow]:
        self.poll()
        filling = Filling(home.database)
        filling.engine()
        finish(filling)
        return follow(self, timeout, interval)

    monkeypatch.setattr(Follower, "follow", train_and_follow)


def test_json(marlaas: Commander, engine: FakeEngine, trained: None) -> None:
    said = marlaas("demo", "--json")
    assert said.code == 0 and engine.asked == ["start", "stop"]
    report = said.json
    assert [task["tenant"] for task in report["tasks"]] == [task.spec.tenant for task in demo_tasks()]
    first = report["tasks"][0]
    promised = {"tenant", "environment", "steps", "eval_before", "eval_after", "floor", "seconds"}
    assert promised <= set(first)
    assert (first["eval_before"], first["eval_after"], first["floor"], first["seconds"]) == (0.3, 0.9, 0.05, 90)
    assert (first["gap_max"], first["metrics_after"]) == (0.002, {"lenient": 0.9})
    assert (first["largest_gap"], first["baseline"]) == (first["gap_max"], first["floor"])
    assert report["memory"] == {"env arithmetic": 42_000_000, "rollout": 812_000_000, "training": 640_000_000}
    assert "reward" in said.err


def test_lines(marlaas: Commander, engine: FakeEngine, trained: None) -> None:
    said = marlaas("demo")
    assert said.code == 0
    assert "done after 60 steps and 1 min 30 s, held-out 0.30 → 0.90 (baseline 0.05)" in said.out


def test_an_unfinished_run_goes_on(home: Home, marlaas: Commander, engine: FakeEngine, trained: None) -> None:
    filling = Filling(home.database)
    submissions.submit(home.database, demo_tasks())
    filling.execute("UPDATE tasks SET state = 'paused' WHERE id = 2")
    said = marlaas("demo", "--json")
    assert [task["id"] for task in said.json["tasks"]] == [1, 2, 3]
    assert "Going on" in said.err
    with Reader(home.database) as reader:
        assert len(reader.tasks()) == 3
        assert reader.all("SELECT kind, task FROM commands")[0]["task"] == 2


def test_a_finished_run_is_left_alone_and_so_are_other_tenants(home: Home, filling: Filling) -> None:
    for state in ("running", "done"):
        filling.task("somebody", "else", state=state)
    with Reader(home.database) as reader:
        assert unfinished_run(reader.tasks(), demo_tasks()) == []
    for submission in demo_tasks():
        filling.task(submission.spec.tenant, submission.spec.name, state="done")
    with Reader(home.database) as reader:
        assert unfinished_run(reader.tasks(), demo_tasks()) == []
    filling.execute("UPDATE tasks SET state = 'queued' WHERE id = 4")
    with Reader(home.database) as reader:
        assert [task.id for task in unfinished_run(reader.tasks(), demo_tasks())] == [3, 4, 5]


def test_a_failed_task_fails_the_demo(
    home: Home, marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = Follower.follow

    def fail(self: Follower, timeout: float | None = None, interval: float = 1.0) -> list[TaskRow]:
        finish(Filling(home.database), "failed")
        return follow(self, timeout, interval)

    monkeypatch.setattr(Follower, "follow", fail)
    assert marlaas("demo", "--json").code == 1
    assert engine.asked == ["start", "stop"]


def test_ctrl_c_stops_the_engine_and_keeps_the_tasks(
    home: Home, marlaas: Commander, engine: FakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(self: Follower, timeout: float | None = None, interval: float = 1.0) -> list[TaskRow]:
        raise KeyboardInterrupt

    monkeypatch.setattr(Follower, "follow", interrupt)
    said = marlaas("demo")
    assert said.code == 130 and "goes on from the last steps" in said.err
    assert engine.asked == ["start", "stop"]


def test_a_sampler_goes_into_the_settings(home: Home, marlaas: Commander, engine: FakeEngine, trained: None) -> None:
    engine.living = False
    assert marlaas("demo", "--json", "--sampler", "llama.cpp").code == 0
    assert load_settings(home).rollout.sampler == "llama.cpp"
    assert engine.asked == ["start", "stop"]


def test_an_engine_with_another_sampler_is_left_alone(home: Home, marlaas: Commander, engine: FakeEngine) -> None:
    said = marlaas("demo", "--sampler", "llama.cpp")
    assert said.code == 2 and "samples with something else than llama.cpp" in said.err
    assert f"`marlaas --home {home.root} engine stop`" in said.err and "start" not in engine.asked


def test_messages_name_the_home_that_the_engine_serves(
    home: Home, marlaas: Commander, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """What the application says when it is left goes the same way: there other tasks may run at the default place."""
    monkeypatch.delenv("MARLAAS_HOME")
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "a state"))
    own = demo.demo_home(argparse.Namespace())
    output.talk("1 task goes on running; `marlaas engine stop` stops the engine. `marlaas` shows it; `marlaas --help`.")
    option = f"--home '{own.root}'"
    assert capsys.readouterr().err == (
        f"1 task goes on running; `marlaas {option} engine stop` stops the engine. `marlaas {option}` shows it;"
        " `marlaas --help`.\n"
    )
    output.mean_home("")
    Filling(own.database).task(state="queued")
    assert f"`marlaas {option} engine start`" in marlaas("--home", str(own.root), "list").err
    monkeypatch.setenv("MARLAAS_HOME", str(own.root))
    assert "`marlaas engine start`" in marlaas("list").err


def test_a_home_of_its_own(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MARLAAS_HOME", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    assert demo.demo_home(argparse.Namespace()).root.name == "marlaas-demo"
    assert demo.demo_home(argparse.Namespace(sampler="llama.cpp")).root.name == "marlaas-demo-llama.cpp"
    assert demo.demo_home(argparse.Namespace(sampler="llama.cpp")).root.name == "marlaas-demo-llama.cpp"
    (tmp_path / "marlaas.toml").touch()
    assert demo.demo_home(argparse.Namespace(home=str(tmp_path))).root == tmp_path
    monkeypatch.setenv("MARLAAS_HOME", str(tmp_path / "given"))
    assert demo.demo_home(argparse.Namespace()).root == tmp_path / "given"


def test_a_folder_that_is_free_becomes_the_home(
    marlaas: Commander, engine: FakeEngine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun: list[Home] = []

    def begin(home: Home, say: object, sampler: str | None, real: bool) -> list[int]:
        begun.append(home)
        raise MarlaasError("that is all.")

    monkeypatch.setattr(demo, "begin", begin)
    (tmp_path / "empty").mkdir()
    for name in ("new", "empty"):
        marlaas("--home", str(tmp_path / name), "demo", "--json")
        assert begun.pop().root == tmp_path / name
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    (tmp_path / "file").touch()
    for name, why in (("full", "the folder holds other things"), ("file", "is a file")):
        said = marlaas("--home", str(tmp_path / name), "demo", "--json")
        assert said.code == 2 and why in said.err and not begun
    said = marlaas("--home", str(tmp_path / "newer"), "list")
    assert said.code == 2 and "No home at" in said.err, "other verbs make none"
