"""The example that is a script does with a real engine what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from examples.learning_rates import TASK, sweep
from marlaas.app.client import Home

from ..conftest import Lab

pytestmark = pytest.mark.processes


def test_a_sweep_from_python(lab: Lab, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    short = {
        "steps": 2,
        "train": {"learning_rate": [1e-4, 1e-3], "groups_per_step": 2, "group_size": 4},
        "eval": {"prompts": 8, "every": 0},
    }
    home = Home(lab.home.root)
    best = sweep(home, {**TASK, **short}, tmp_path / "adapter")
    assert {task.state for task in home.tasks(family="learning rates")} == {"done"} and best.best is not None
    assert (tmp_path / "adapter" / "adapter_model.safetensors").is_file()
    printed = capsys.readouterr().out
    assert f"The best is task {best.id}. It was asked" in printed and "step   2/2" in printed
