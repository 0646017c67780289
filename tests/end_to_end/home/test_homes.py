"""Homes as people have them: made by several programs at once, of any name, and those of the last release."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.lock import holder
from marlaas.engine.home.paths import Home
from marlaas.engine.store.schema import is_current

from ...old_homes import unpack
from ..conftest import PATIENCE, Lab, consumed_once

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

SMALL = """
tenant = "lab"
name = "{name}"
environment = "arithmetic"
steps = 1
policy = {{ rank = 1 }}
train = {{ groups_per_step = 1, group_size = 2 }}
sampling = {{ max_tokens = 4 }}
eval = {{ prompts = 2, every = 0 }}
"""


@pytest.fixture
def homes() -> Iterator[list[Home]]:
    """Those that the test made; their engines end with it."""
    made: list[Home] = []
    yield made
    for home in made:
        if holder(home.lock) is not None:
            control.stop(home)


@pytest.mark.slow
def test_three_submits_at_once_make_a_home_of_any_name(tmp_path: Path, homes: list[Home]) -> None:
    """Every day, programs that make one home at once are met in ``tests/engine/daemon/test_control.py``."""
    home = Home(tmp_path / "50% of #1? ünd %41")
    homes.append(home)
    programs = []
    for name in ("one", "two", "three"):
        file = tmp_path / f"{name}.toml"
        file.write_text(SMALL.format(name=name))
        command = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "submit", str(file), "--json"]
        environment = os.environ | {"MARLAAS_HOME": str(home.root)}
        pipe = subprocess.PIPE
        programs.append(subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe, text=True))
    said = [program.communicate(timeout=PATIENCE) for program in programs]
    assert [program.returncode for program in programs] == [0, 0, 0], said
    assert sorted(json.loads(out)["ids"][0] for out, _ in said) == [1, 2, 3]
    lab = Lab(home)
    lab.marlaas("wait", "1", "2", "3")
    assert {task["state"] for task in json.loads(lab.marlaas("list", "--json"))} == {"done"}
    assert lab.show(1)["step"] == 1
    lab.marlaas("adapters", "export", "1", "--out", str(tmp_path / "adapter"))
    lab.marlaas("rollouts", "1")
    lab.marlaas("engine", "status")
    lab.marlaas("engine", "stop")


def test_a_home_of_the_first_release_goes_on(tmp_path: Path, homes: list[Home]) -> None:
    lab = Lab(unpack(tmp_path / "home"))
    homes.append(lab.home)
    tasks = {task["name"]: task for task in json.loads(lab.marlaas("list", "--json"))}
    assert {name: task["step"] for name, task in tasks.items()} == {"finished": 5, "paused": 3, "queued": 0}
    assert is_current(lab.home.database), "no engine ran: the first who read it has brought it up to date"
    assert "best" in lab.marlaas("adapters", "list")
    lab.marlaas("show", "1")
    control.ensure_running(lab.home)
    lab.marlaas("resume", "2")
    lab.marlaas("wait", "2", "3")
    for task, steps in ((2, 8), (3, 3)):
        assert lab.row(task).state == "done" and lab.row(task).step == steps
        consumed_once(lab.home, task)
    log = lab.marlaas("logs", "2")
    assert "void" not in log and "begins anew" not in log, "it went on from step 3"
