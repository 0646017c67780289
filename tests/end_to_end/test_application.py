"""The real program on a real engine: in a terminal, in plain lines, from Python, and how it ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from examples.learning_rates import TASK, sweep
from marlaas.app.client import Home as Client
from marlaas.engine.daemon.control import create_database
from marlaas.engine.home.paths import Home

from ..app.filling import fill_full
from .conftest import Lab, environment, served
from .terminal import terminal

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

DIVIDES = """
from marlaas.plugins import env

@env
async def divides(ep):
    await ep.ask("hi")
    return 1 / 0
"""
MUTE = """
from marlaas.plugins import env

@env
async def mute(ep):
    return 1.0
"""


def test_a_person_watches_steers_and_leaves(lab: Lab) -> None:
    task = lab.submit("steered", steps=2000, train={"patience": 1000}, eval={"prompts": 8, "every": 20})
    lab.until(task, 3)
    with terminal(lab.home) as screen:
        screen.until("steered", "● running", "engine: ● alive")
        screen.press("/steered\r")
        screen.until("1 of ")
        screen.press("\r")
        screen.until("steered (arithmetic)", "reward", "held-out", "entropy")
        for key, *words in (
            ("3", "all steps", "groups"),
            ("4", "arithmetic", "● ready"),
            ("5", "steered", "version"),
            ("6", "rollout", "training", "core"),
            ("7", "running"),
        ):
            screen.press(key)
            screen.until(*words)
        screen.resize(120, 40)
        screen.press("1")
        screen.until("environment", "progress", "steered")
        screen.press("p")
        screen.until("‖ paused", "u undoes it")
        assert lab.row(task).state == "paused"
        screen.press("u")
        screen.until("● running")
        screen.press("q")
        # The home is shared: what other tests left running counts as well.
        assert screen.end() == 0 and re.search(r"1 task goes|\d+ tasks go", screen.text())
    made = lab.row(task).step
    assert lab.until(task, made + 2).state == "running"
    lab.marlaas("cancel", str(task))


def test_what_goes_wrong_is_seen_and_mended(lab: Lab) -> None:
    """Environments that fail or never ask, an engine that is frozen and one that was killed."""
    path = lab.home.plugins / "divides.py"
    path.write_text(DIVIDES)
    (lab.home.plugins / "mute.py").write_text(MUTE)
    served(lab, "divides/divides", "ready")
    served(lab, "mute/mute", "ready")
    running = lab.submit("goes on running", steps=5000, train={"patience": 5000})
    doomed, silent = lab.submit("divides by zero", "divides"), lab.submit("says nothing", "mute", steps=300)
    with terminal(lab.home) as screen:
        screen.until("■ blocked", "divides.py:7: ZeroDivisionError", "1 blocked", "● running")
        blocked = {row["id"]: row for row in json.loads(lab.marlaas("list", "--filter", "state:blocked", "--json"))}
        assert running not in blocked and blocked[doomed]["state"] == lab.show(doomed)["state"] == "blocked"
        assert blocked[doomed]["reason"].startswith("divides.py:7: ZeroDivisionError: division by zero, on all of ")
        lab.marlaas("pause", str(doomed))  # so that nobody tries the environment again
        served(lab, "divides/divides", "failing")
        lab.reaches(silent, "paused", "mute/mute never called `ep.ask` in ")
        lab.until(running, 1)

        os.kill(lab.engine_pid(), signal.SIGSTOP)
        try:
            screen.until("engine: ! silent")
        finally:
            os.kill(lab.engine_pid(), signal.SIGCONT)
        screen.until("engine: ● alive")
        lab.kill_engine()
        killed = time.time()
        screen.press("g")  # the cursor was on the doomed task: narrow tables give the reason of the line under it
        screen.until("○ waiting", "waiting for the engine", "engine: ✗ down", "S starts one")
        assert "● running" not in screen.text()
        listing = lab.marlaas("list")
        assert "○ waiting" in listing and "waiting for the engine" in listing and "● running" not in listing
        screen.press("S")
        screen.until("engine: ● alive", "● running")
        os.kill(screen.process.pid, signal.SIGKILL)
        screen.end()
    assert lab.until(running, lab.row(running).step + 2).state == "running", "the application is needed by nobody"

    row = environment(lab, "divides/divides", lambda row: row.updated > killed and row.state != "loading")
    assert row.state == "failing" and row.line == 7, "nothing has tried it since"
    path.write_text(DIVIDES.replace("1 / 0", "ep.noise.random()"))
    served(lab, "divides/divides", "ready", other_than=row.version)
    lab.marlaas("resume", str(doomed))
    lab.marlaas("wait", str(doomed))
    lab.marlaas("cancel", str(running))


def test_the_shell_for_a_moment_and_a_closed_terminal(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    fill_full(home.database)
    with terminal(home) as screen:
        screen.until("task number 0", "palette")
        screen.suspend()
        screen.resume()
        screen.until("1 queue", "task number 0", "palette")
        screen.close()
        screen.process.wait(30)


@pytest.mark.parametrize("early", [True, False])
def test_sigterm_leaves_the_terminal_as_it_was(tmp_path: Path, early: bool) -> None:
    """``kill`` and a system that shuts down send SIGTERM; mouse reports and the alternate screen would stay."""
    with terminal(Home(tmp_path).create()) as screen:
        screen.until("opening") if early else screen.until("Three ways to begin")
        os.kill(screen.process.pid, signal.SIGTERM)
        assert screen.end() == 128 + signal.SIGTERM
        for mode in (1049, 1000, 1003, 1006, 2004):
            on, off = f"\x1b[?{mode}h".encode(), f"\x1b[?{mode}l".encode()
            assert screen.drawn.rfind(on) <= screen.drawn.rfind(off), f"mode {mode} stays on"
        assert screen.drawn.rfind(b"\x1b[?25l") < screen.drawn.rfind(b"\x1b[?25h"), "the cursor stays hidden"


@pytest.mark.parametrize("closed", [">&-", "<&- >&- 2>&-"])
def test_streams_that_are_closed_are_no_fault(tmp_path: Path, closed: str) -> None:
    home = Home(tmp_path)
    create_database(home)
    command = f"{sys.executable} -P -m marlaas.app.cli.main --home {home.root} {closed}"
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0 and "Error" not in done.stderr
    assert not (home.logs / "marlaas-errors.log").exists()


def heard(lab: Lab, *words: str, code: int = 0) -> list[str]:
    """The lines that a command line prints for somebody at a terminal, who may hear them."""
    with terminal(lab.home, "--plain", *words) as screen:
        assert screen.end() == code, screen.text()
        text = screen.drawn.decode()
    assert text.endswith("\r\n") and not re.search(r"[^ -~\r\n]|\r(?!\n)|(?<!\r)\n", text), text
    lines = text.splitlines()
    assert [line for line in lines if "  " in line] == []
    return lines


def test_a_home_is_heard_from_the_task_to_the_error(lab: Lab) -> None:
    task = lab.submit("by ear", steps=3)
    number = str(task)
    said = heard(lab, "wait", number)
    assert said[-1].startswith(f"Task {task}, lab, by ear: done, step 3 of 3, reward ")
    assert len(said) <= 5, "first, running, a score, done: what comes between waits"
    (row,) = [line for line in heard(lab) if line.startswith(f"ID {task}: ")]
    assert "task by ear; environment arithmetic; state done; step 3 of 3; reward " in row
    (group, *_) = heard(lab, "rollouts", number, "--step", "1")
    assert re.match(r"group \d+: prompt \S+; reward \d\.\d\d plus or minus \d\.\d\d; replies (right|wrong): ", group)
    assert heard(lab, "show", "77", code=2)[0] == "marlaas: There is no task 77."


def test_prompts_are_typed_without_drawing(lab: Lab) -> None:
    with terminal(lab.home, "--plain", "env", "play", "arithmetic") as screen:
        screen.until("you>")
        screen.press("12\n")
        screen.until("reward")
        screen.press("again\n")
        screen.until("you>")
        screen.press("\x03")
        screen.until("Interrupted")
        assert screen.end() == 130
        drawn = screen.drawn.decode()
    assert "\x1b" not in drawn and not re.search(r"\r(?!\n)", drawn), drawn


@pytest.mark.slow
def test_the_demo_is_told_in_sentences(lab: Lab) -> None:
    """Daily, without an engine: ``tests/app/cli/test_demo.py``."""
    with terminal(lab.home, "--plain", "demo", columns=200, rows=50) as screen:
        screen.until_like(r"Task \d+, [^:]*: running, step [1-9]\d* of 60, reward ")
        screen.press("\x03")
        assert screen.end() == 130
        drawn = screen.drawn.decode().replace("^C", "")
    assert not re.search(r"[^ -~\r\n]|\r(?!\n)", drawn), drawn
    assert "goes on from the last steps" in drawn


@pytest.mark.slow
def test_a_sweep_from_python(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The example that is a script does what it says. Daily: ``tests/app/client``."""
    short = {
        "steps": 2,
        "train": {"learning_rate": [1e-4, 1e-3], "groups_per_step": 2, "group_size": 4},
        "eval": {"prompts": 8, "every": 0},
    }
    home = Client(lab.home.root)
    best = sweep(home, {**TASK, **short}, tmp_path / "adapter")
    assert {task.state for task in home.tasks(family="learning rates")} == {"done"} and best.best is not None
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    printed = capsys.readouterr().out
    assert f"The best is task {best.id}. It was asked" in printed and "step   2/2" in printed
