"""Trackers with their real packages: each reads back what the store has, though observer and engine were killed."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from marlaas.engine.daemon import control
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.trackers import TRACKERS
from tests.end_to_end.conftest import Lab
from tools.environments import client

from .conftest import metric, trained

pytestmark = [pytest.mark.clients, pytest.mark.processes, pytest.mark.timeout(900)]

STEPS, FURTHER = 600, 30
SETTINGS = """\
[rollout]
sampler = "torch"
[track]
to = {to}
project = "mine"
"""
READ = """\
import glob, json, sqlite3, sys
from pathlib import Path

home = Path(sys.argv[1])
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
(folder,) = glob.glob(str(home / "track" / "tensorboard" / "*"))
board = EventAccumulator(folder, size_guidance={"scalars": 0})
board.Reload()
found = {"tensorboard": [(event.step, event.value) for event in board.Scalars("train/reward")]}
from mlflow.tracking import MlflowClient
mlflow = MlflowClient(f"sqlite:///{home / 'track' / 'mlflow' / 'mlflow.db'}")
(run,) = mlflow.search_runs([mlflow.get_experiment_by_name("mine").experiment_id])
assert run.info.status == "FINISHED"
history = mlflow.get_metric_history(run.info.run_id, "train/reward")
found["mlflow"] = sorted((point.step, point.value) for point in history)
import trackio
with sqlite3.connect(home / "track" / "trackio" / "mine.db") as base:
    rows = base.execute("SELECT step, metrics FROM metrics ORDER BY step, id").fetchall()
rows = [(step, json.loads(metrics).get("train/reward")) for step, metrics in rows]
found["trackio"] = [row for row in rows if row[1] is not None]
print(json.dumps(found))
"""


@pytest.fixture
def tracked_lab(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Lab]:
    """A home that tracks, whose engine finds the packages."""
    folder = client("trackers") / "lib" / f"python{sys.version_info[0]}.{sys.version_info[1]}" / "site-packages"
    if not folder.is_dir():
        pytest.skip("`python -m tools.environments clients trackers` installs them")
    monkeypatch.setenv("PYTHONPATH", str(folder))
    monkeypatch.setenv("WANDB_MODE", "offline")
    lab = Lab(Home(tmp_path / "home").create())
    lab.home.config.write_text(SETTINGS.format(to=json.dumps(list(TRACKERS))))
    control.ensure_running(lab.home)
    yield lab
    control.stop(lab.home)


def observers(lab: Lab) -> list[int]:
    """Process ids."""
    listed = subprocess.run(["pgrep", "-f", f"tracking.observer {lab.home.root}"], capture_output=True, text=True)
    return [int(pid) for pid in listed.stdout.split()]


def sent(lab: Lab, pattern: str) -> None:
    """Wait until each observer has noted what looks like this."""
    deadline = time.monotonic() + 120
    states = [lab.home.root / "track" / f"{name}.json" for name in TRACKERS]
    while not all(path.exists() and re.search(pattern, path.read_text()) for path in states):
        assert time.monotonic() < deadline, lab.marlaas("logs")
        time.sleep(0.5)  # observers are other processes: there is nothing to await


def test_each_tracker_reads_back_the_same_numbers(tracked_lab: Lab) -> None:
    lab = tracked_lab
    train = {"groups_per_step": 1, "group_size": 2, "patience": 1000}
    task = lab.submit("curve", steps=STEPS, train=train, eval={"prompts": 2, "every": 20})
    sent(lab, '"step": [1-9]')
    for pid in observers(lab):
        os.kill(pid, signal.SIGKILL)
    lab.until(task, lab.row(task).step + FURTHER)
    lab.kill_engine()
    lab.marlaas("engine", "start")
    trained(lab, task, 600)
    stored = [[step, reward] for step, reward in enumerate(metric(lab, task, "reward"), start=1)]
    sent(lab, '"ended": "done"')
    time.sleep(3)  # trackio's thread writes what it was given within a second
    python = client("trackers") / "bin" / "python"
    read = subprocess.run(
        [str(python), "-c", READ, str(lab.home.root)], capture_output=True, text=True, check=False, timeout=120
    )
    assert read.returncode == 0, read.stderr[-2000:]
    found = json.loads(read.stdout.splitlines()[-1])
    assert [[step, pytest.approx(value)] for step, value in found["tensorboard"]] == stored
    for name in ("mlflow", "trackio"):  # what was sent just before a kill may be sent again
        assert [list(row) for row in sorted({tuple(row) for row in found[name]})] == stored, name
    runs = [path.name for path in (lab.home.root / "track" / "wandb" / "wandb").glob("offline-run-*")]
    assert len({name.partition("marlaas-")[2] for name in runs}) == 1 and len(runs) >= 2, "resumed under the same id"
