"""demo, simulate and chat, as people type them."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path

import pytest

from marlaas.app import output
from marlaas.app.cli import demo
from marlaas.app.operations.commands import Follower
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.home.settings import load_settings
from marlaas.engine.queue.submission.taskfile import demo_tasks
from marlaas.engine.store import submissions
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TaskRow

from ...engine.simulate.made_up import NODES, TASKS, cluster, profile
from ..commanding import Commander, FakeEngine, Said
from ..filling import Filling
from ..filling_adapters import with_silent_adapter


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


def refused(said: Said, why: str) -> None:
    assert said.code == 2 and why in said.err and not said.out


@pytest.fixture
def recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the made-up profile were recorded in any home."""
    monkeypatch.setattr("marlaas.engine.simulate.cluster_file.record", lambda home: profile())


@pytest.mark.usefixtures("recorded")
def test_figures_are_printed(tmp_path: Path, marlaas: Commander) -> None:
    path = cluster(tmp_path, NODES + TASKS)
    said = marlaas("simulate", str(path))
    assert said.out.startswith("tasks") and "4 of 4 done, 12 steps" in said.out
    for words in ("makespan", "95 % within", "rollout on core 0", "placement", "lab-2", "gaps"):
        assert words in said.out
    assert "not comparable" in said.err
    told = marlaas("simulate", str(path), "--json", "--seed", "5").json
    assert told["gaps"] == told["beyond"] == 0 and told["tasks"] == 4 and told["starts"] == 1
    assert told["engine"]["per_simulated_second"] > 0 and {"by_package", "dearest"} < told["engine"].keys()


@pytest.mark.usefixtures("recorded")
def test_a_simulated_home_is_kept_and_whole(tmp_path: Path, marlaas: Commander) -> None:
    path, kept = cluster(tmp_path, NODES + TASKS), tmp_path / "kept"
    assert marlaas("simulate", str(path), "--keep", str(kept)).code == 0
    assert "Nothing is wrong." in marlaas("--home", str(kept), "home", "check").out
    refused(marlaas("simulate", str(path), "--keep", str(kept)), "holds other things")


def test_what_cannot_be_simulated_is_told(tmp_path: Path, marlaas: Commander) -> None:
    refused(marlaas("simulate", str(tmp_path / "lost.toml")), "cannot be read")
    refused(marlaas("simulate"), "Name a cluster file")
    refused(marlaas("simulate", "--record", str(tmp_path), "--out", "x.json"), "are not written any more")


ENTRY = [sys.executable, "-P", "-m", "marlaas.app.cli.main"]


@pytest.mark.processes
@pytest.mark.torch
def test_a_version_and_the_base_answer_beside_each_other(filling: Filling, home: Home) -> None:
    task = with_silent_adapter(filling, home)
    typed = '17+4=\n\n"""\ntwo\nlines\n"""\n/system Be kind.\n17+4=\n/help\n/quit\nnot read\n'
    command = [*ENTRY, "--home", str(home.root), "chat", f"{task}@last", "--beside", "base", "--max-tokens", "4"]
    done = subprocess.run(command, input=typed, capture_output=True, text=True)
    assert done.returncode == 0 and "Traceback" not in done.stderr
    assert "A sampler of its own takes about" in done.stderr and "are free." in done.stderr
    assert f"You talk with version 2 of task {task} (sums, last), and with the base without an adapter." in done.stderr
    blocks = [block.split("\n") for block in done.stdout.split("you> ")]
    first, again = (next(block for block in blocks[at:] if block[0] == "17+4=") for at in (0, 4))
    assert first[1].startswith("1@2>  ") and first[1].removeprefix("1@2>  ") == first[2].removeprefix("base> ")
    assert again[1] and "not read" not in done.stdout and "/new begins anew" in done.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("7",), "There is no adapter '7'."),
        (("base", "--temperature", "11"), "is no temperature from 0 to 10"),
        (("base", "--top-p", "0"), "is no probability from 0.001 to 1"),
    ],
)
def test_what_cannot_be_talked_with_is_a_sentence(marlaas: Commander, words: tuple[str, ...], sentence: str) -> None:
    said = marlaas("chat", *words)
    assert said.code and sentence in said.err and not said.out


def test_a_base_that_does_not_fit_is_refused_at_once(marlaas: Commander, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("marlaas.engine.machine.lone_sampler.available_memory", lambda limit: 1_000_000)
    said = marlaas("chat", "base")
    assert said.code and "The base needs" in said.err and "0.0 GB are free on this machine" in said.err


def test_an_engine_with_another_sampler_is_left_alone(home: Home, marlaas: Commander, engine: FakeEngine) -> None:
    said = marlaas("demo", "--sampler", "llama.cpp")
    assert said.code == 2 and "samples with something else than llama.cpp" in said.err
    assert f"`marlaas --home {home.root} engine stop`" in said.err and "start" not in engine.asked
