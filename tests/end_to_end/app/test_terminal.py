"""The real program in a pseudo-terminal, on a real engine that trains: every view, the acts, and going away."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest

from marlaas.engine.home.paths import Home

from ...app.filling import fill_full
from ..conftest import Lab
from ..terminal import terminal

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def test_a_person_watches_steers_and_leaves(lab: Lab) -> None:
    task = lab.submit("steered", steps=2000, train={"patience": 1000}, eval={"prompts": 8, "every": 20})
    lab.until(task, 3)
    with terminal(lab.home) as screen:
        screen.until("steered", "● running", "engine: ● alive")
        screen.press("/steered\r")
        screen.until("1 of ")
        screen.press("\r")
        screen.until("steered (arithmetic)", "reward", "held-out", "entropy")
        screen.press("3")
        screen.until("all steps", "groups")
        screen.press("4")
        screen.until("arithmetic", "● ready")
        screen.press("5")
        screen.until("steered", "version")
        screen.press("6")
        screen.until("rollout", "training", "core")
        screen.press("7")
        screen.until("running")
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


def test_a_killed_application_and_a_frozen_engine(lab: Lab) -> None:
    task = lab.submit("goes on", steps=2000, train={"patience": 1000})
    lab.until(task, 1)
    with terminal(lab.home) as screen:
        screen.until("goes on", "● running")
        os.kill(screen.process.pid, signal.SIGKILL)
        screen.end()
    assert lab.until(task, lab.row(task).step + 2).state == "running"
    with terminal(lab.home) as screen:
        screen.until("goes on", "alive")
        os.kill(lab.engine_pid(), signal.SIGSTOP)
        try:
            screen.until("engine: ! silent")
        finally:
            os.kill(lab.engine_pid(), signal.SIGCONT)
        screen.until("engine: ● alive")
        screen.press("q")
        assert screen.end() == 0
    lab.marlaas("cancel", str(task))


def test_a_read_only_application_changes_nothing(lab: Lab) -> None:
    task = lab.submit("looked at", steps=2000, train={"patience": 1000})
    lab.until(task, 1)
    with terminal(lab.home, "--readonly", "--ascii") as screen:
        text = screen.until("marlaas, read-only", "looked at", "* running")
        assert text.isascii()
        screen.press("p")
        screen.until("read-only mode")
        screen.press("q")
        assert screen.end() == 0
    assert lab.row(task).state == "running"
    lab.marlaas("cancel", str(task))


def test_the_shell_for_a_moment_and_back(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    fill_full(home.database)
    with terminal(home) as screen:
        screen.until("task number 0", "palette")
        screen.suspend()
        screen.resume()
        screen.until("1 queue", "task number 0", "palette")
        screen.press("q")
        assert screen.end() == 0


def test_a_closed_terminal_ends_the_application(tmp_path: Path) -> None:
    home = Home(tmp_path / "home")
    fill_full(home.database)
    with terminal(home) as screen:
        screen.until("task number 0")
        screen.close()
        screen.process.wait(30)
