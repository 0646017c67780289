"""A task on an environment that needs a library: it waits, says so, and goes on by itself once that is allowed."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from ...engine.environments.wheels import make_wheel
from ..conftest import PATIENCE, Lab

pytestmark = [pytest.mark.processes, pytest.mark.slow, pytest.mark.timeout(600)]

PLUGIN = """\
# /// script
# dependencies = ["tiny @ {wheel}"]
# ///
import tiny
from marlaas.plugins import env


@env
async def adding(ep):
    a, b = ep.rng.randrange(10), ep.rng.randrange(10)
    return (await ep.ask(f"{{a}}+{{b}}=")).text == str(tiny.total(a, b))
"""


def test_a_task_waits_for_a_library_and_goes_on_by_itself(lab: Lab, tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "tiny", "1.0", {"tiny.py": "def total(a, b):\n    return a + b\n"})
    (lab.home.plugins / "sums.py").write_text(PLUGIN.format(wheel=wheel.as_uri()))
    task = lab.submit("waits", "adding", steps=2)
    nowhere = tmp_path / "nowhere.toml"
    nowhere.write_text(lab.home.root.with_name("waits.toml").read_text().replace("adding", "adds"))
    assert "no environment 'adds'" in lab.marlaas("submit", str(nowhere), code=2)
    deadline = time.monotonic() + PATIENCE
    while (lab.row(task).reason or "").find("allow with `marlaas env allow sums`") < 0:
        assert time.monotonic() < deadline, lab.row(task)
        time.sleep(0.02)  # the engine is another process: there is nothing to await

    assert "--yes" in lab.marlaas("env", "allow", "sums", code=2)
    assert f"tiny@ {wheel.as_uri()}" in lab.marlaas("env", "allow", "sums", "--yes").replace("tiny @", "tiny@")
    at_once = lab.submit("at once", "sums/adding", steps=2)
    lab.marlaas("wait", str(task), str(at_once))
    assert lab.row(task).step == lab.row(at_once).step == 2
