"""The main job with llama.cpp, which samples from all but small bases, from the shipped base in float32 and 8 bits."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.lock import holder
from marlaas.engine.paths import Home

from .conftest import Lab, consumed_once

pytestmark = [pytest.mark.processes, pytest.mark.timeout(150)]


@pytest.fixture(params=["f32", "q8_0"])
def llama_lab(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Lab]:
    """A home whose settings name llama.cpp."""
    lab = Lab(Home(tmp_path / "home").create())
    lab.home.config.write_text(f'[rollout]\nsampler = "llama.cpp"\nweights = "{request.param}"\n')
    control.ensure_running(lab.home)
    yield lab
    if holder(lab.home.lock) is not None:
        control.stop(lab.home)


def test_two_tasks_train_and_outlive_their_sampler(llama_lab: Lab) -> None:
    tasks = [
        llama_lab.submit("sums", "arithmetic", steps=6, train={"max_staleness": 1}),
        llama_lab.submit("guesses", "guess", steps=6),
    ]
    llama_lab.until(tasks[0], 2)
    (sampler,) = llama_lab.worker_pids("rollout")
    os.kill(sampler, signal.SIGKILL)
    llama_lab.marlaas("wait", *map(str, tasks))
    for task in tasks:
        assert llama_lab.show(task)["step"] == 6
        consumed_once(llama_lab.home, task)
    assert list(llama_lab.home.base.glob("*.gguf")), "llama.cpp has read no base"
