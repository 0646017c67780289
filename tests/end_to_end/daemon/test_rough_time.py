"""A new home knows roughly how long a task takes, before anybody has trained there.

In ``make test-slow``: every day, a base is measured for real in ``tests/app/operations/estimating/test_probing.py``.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from marlaas.engine.home.paths import Home

from ..conftest import Lab

pytestmark = [pytest.mark.processes, pytest.mark.slow]


def test_submit_check_measures_and_gives_a_range(tmp_path: Path) -> None:
    lab = Lab(Home(tmp_path / "home").create())
    task = tmp_path / "task.toml"
    task.write_text('tenant = "a"\nname = "b"\nenvironment = "guess"\nsteps = 60\n')
    (shown,) = json.loads(lab.marlaas("submit", "--check", str(task), "--json"))["tasks"]
    estimate = shown["estimate"]
    least, most = estimate["seconds_range"]
    assert estimate["episodes_played"] == 8 and estimate["runs"] == 0
    assert 0 < least < estimate["seconds"] < most
    said = lab.marlaas("submit", "--check", str(task))
    assert "measured on 8 episodes: no task here has trained on guess yet" in said
    assert lab.home.speeds.exists() and not lab.home.database.exists()
