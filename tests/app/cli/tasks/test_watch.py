"""watch: a line for each change, in words for ears; ends with the given tasks, or at once at Ctrl-C."""

from __future__ import annotations

import json
import signal
import subprocess
import sys

import pytest

from marlaas.app.cli import tasks
from marlaas.app.operations.commands import Follower, milestone, sentence, ways
from marlaas.app.reading import opened
from marlaas.engine.home.paths import Home

from ...commanding import Commander, FakeEngine
from ...filling import HOSTILE, Filling


def test_given_tasks_that_have_ended(filling: Filling, marlaas: Commander, engine: FakeEngine) -> None:
    filling.task(name="sums", state="done", steps=20, made=20)
    filling.task(state="failed", reason="the environment failed")
    said = marlaas("watch", "1", "--plain")
    assert (said.code, said.err) == (0, "")
    assert (
        said.out
        == "Task 1, physics-lab, sums: done, step 20 of 20, reward 0.63, held-out score 0.58 plus or minus 0.03"
        " (64 prompts).\n"
    )
    said = marlaas("watch", "1", "2", "--quiet")
    assert said.code == 1 and ["✓" in line for line in said.out.splitlines()] == [True, False]
    assert "the environment failed" in said.out
    assert [json.loads(line)["id"] for line in marlaas("watch", "1", "2", "--json").out.splitlines()] == [1, 2]
    assert marlaas("watch", "9").code == 2


def test_without_numbers_it_follows_all_until_ctrl_c(
    filling: Filling, home: Home, engine: FakeEngine, capsys: pytest.CaptureFixture[str]
) -> None:
    filling.task(state="done", made=2)
    filling.task(name="old", state="running", made=2)
    events = iter(
        (
            lambda: filling.execute("UPDATE tasks SET state = 'done' WHERE name = 'old'"),
            lambda: filling.task(name="young", state="queued"),
            lambda: setattr(engine, "living", False),
        )
    )

    def sleep(seconds: float) -> None:
        event = next(events, None)
        if event is None:
            raise KeyboardInterrupt
        event()

    with opened(home) as reader, pytest.raises(KeyboardInterrupt):
        follower = Follower(
            lambda: tasks.moving(follower, reader), lambda: engine.living, print, words=sentence, sleep=sleep
        )
        tasks.watch_all(follower)
    said = capsys.readouterr()
    assert [line.split(":")[1].split(",")[0].strip() for line in said.out.splitlines()] == ["running", "done", "queued"]
    assert said.err.splitlines()[1] == tasks.NO_ENGINE


def test_quiet_tells_of_milestones_alone(filling: Filling, home: Home) -> None:
    filling.task(made=3)
    said: list[str] = []
    with opened(home) as reader:
        follower = Follower(reader.tasks, lambda: True, said.append, differs_by=milestone)
        follower.poll()
        filling.execute("UPDATE policies SET step = 4")
        follower.poll()
        filling.execute("UPDATE evals SET score = 0.9")
        follower.poll()
    assert len(said) == 2 and "held-out 0.90" in said[1]


def test_who_hears_it_has_time_to(filling: Filling, home: Home) -> None:
    filling.task(made=3)
    said: list[str] = []
    now = [0.0]
    with opened(home) as reader:
        follower = Follower(reader.tasks, lambda: True, said.append, clock=lambda: now[0], **ways(plain=True))
        follower.poll()
        for step, seconds in ((4, 1.0), (5, 9.9)):
            filling.execute("UPDATE policies SET step = ?", step)
            now[0] = seconds
            follower.poll()
        assert len(said) == 1, "steps alone wait"
        now[0] = 10.0
        follower.poll()
        assert len(said) == 2 and "step 5 of" in said[1]
        filling.execute("UPDATE tasks SET state = 'paused'")
        now[0] = 11.0
        follower.poll()
    assert len(said) == 3 and "paused" in said[2], "a new state does not wait"


def test_hostile_names_stay_on_their_line(filling: Filling, marlaas: Commander, engine: FakeEngine) -> None:
    filling.task(HOSTILE, HOSTILE, state="failed", reason=HOSTILE)
    for option in ("--plain", "--json", "--quiet"):
        said = marlaas("watch", "1", option)
        assert said.out.count("\n") == 1 and "\x1b" not in said.out


def test_nothing_to_watch(home: Home, marlaas: Commander, engine: FakeEngine) -> None:
    assert marlaas("watch").err == "No tasks yet. `marlaas submit FILE` adds one.\n"


@pytest.mark.processes
def test_interrupt_ends_it_at_once(filling: Filling, home: Home) -> None:
    filling.task(state="running", made=2)
    command = [sys.executable, "-m", "marlaas.app.cli.main", "--home", str(home.root), "watch", "--plain"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    assert process.stdout is not None and "running" in process.stdout.readline()
    process.send_signal(signal.SIGINT)
    assert process.wait(50) == 130
    process.stdout.close()
