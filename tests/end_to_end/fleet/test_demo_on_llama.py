"""``make demo SAMPLER=llama.cpp``: the demo's tasks, sampled by llama.cpp, from nothing to their first steps.

In ``make test-slow``: every day, tasks train on llama.cpp in ``test_side_by_side``.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from marlaas.engine.daemon.lock import holder
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from tests.kills import tasks_of

pytestmark = [pytest.mark.processes, pytest.mark.slow]

STEPS = 2
PATIENCE = 300.0
"""Seconds: it takes a tenth of that on two free cores; others may compute beside it."""


def test_the_demo_learns_on_llama_and_goes_on_later(tmp_path: Path) -> None:
    """Interrupted once each task has made steps: the engine ends, the tasks stay."""
    home = Home(tmp_path / "home")
    command = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "demo", "--sampler", "llama.cpp"]
    own = os.environ | {"MARLAAS_HOME": str(home.root)}
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, env=own) as demo:
        try:
            deadline = time.monotonic() + PATIENCE
            while min((task.step for task in tasks_of(home)), default=0) < STEPS:
                assert demo.poll() is None and time.monotonic() < deadline
                time.sleep(0.2)
        finally:
            demo.send_signal(signal.SIGINT)
            _, said = demo.communicate(timeout=PATIENCE)
    assert demo.returncode == 130 and "goes on from the last steps" in said and "Traceback" not in said
    assert holder(home.lock) is None, "the demo's engine is stopped"
    with Reader(home.database) as reader:
        engine = reader.engine()
        assert engine is not None and engine.sampler == "llama.cpp"
        assert all(task.reward is not None and task.unfinished for task in reader.tasks())
    assert list(home.base.glob("*.gguf")), "llama.cpp has read no base"
