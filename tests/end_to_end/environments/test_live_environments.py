"""Environments change while the engine runs: new files are served, edits reach new groups, broken ones do not."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from marlaas.engine.store.queries.reader import Reader

from ..conftest import PATIENCE, Lab
from ..served import environment, served

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PLUGIN = """
from marlaas.plugins import env

@env
async def digits(ep):
    "Rewards replies that begin with a digit."
    reply = await ep.ask(f"say {{ep.rng.randint(0, 10**6)}}")
    ep.log(edition={edition})
    return reply.text[:1].isdigit() + ep.noise.random() / 1000
"""


def test_new_edited_and_broken_files(lab: Lab) -> None:
    path: Path = lab.home.plugins / "digits.py"
    path.write_text(PLUGIN.format(edition=1))
    first = served(lab, "digits/digits", "ready")
    task = lab.submit("live", "digits", steps=300)
    lab.until(task, 2)

    path.write_text(PLUGIN.format(edition=2))
    second = served(lab, "digits/digits", "ready", other_than=first)
    step = lab.row(task).step
    lab.until(task, step + 4)

    path.write_text("def broken(:\n")
    assert served(lab, "digits/digits", "stale") == second
    (row,) = [r for r in json.loads(lab.marlaas("env", "list", "--json")) if r["name"] == "digits/digits"]
    assert row["file"].endswith("digits.py") and row["line"] == 1
    step = lab.row(task).step
    assert lab.until(task, step + 2).state == "running"

    path.unlink()
    deadline = time.monotonic() + PATIENCE
    while lab.row(task).state != "blocked" and time.monotonic() < deadline:
        time.sleep(0.02)
    assert lab.row(task).state == "blocked"
    path.write_text(PLUGIN.format(edition=1))
    step = lab.row(task).step
    assert lab.until(task, step + 2).step >= step + 2
    lab.marlaas("cancel", str(task))
    check_groups(lab, task, {first, second})


def check_groups(lab: Lab, task: int, versions: set[str]) -> None:
    """Both versions played, and no group mixes them."""
    with Reader(lab.home.database) as reader:
        rows = [row for row in reader.trajectories(task, limit=100_000) if row.split == "train"]
    by_group: dict[int, set[object]] = {}
    for row in rows:
        by_group.setdefault(row.group, set()).add(row.metrics.get("edition"))
    assert all(len(editions) == 1 for editions in by_group.values())
    assert {row.environment_version for row in rows} == versions


def test_a_failing_environment_blocks_until_mended(lab: Lab) -> None:
    path = lab.home.plugins / "broken.py"
    path.write_text(
        'from marlaas.plugins import env\n\n\n@env\nasync def broken(ep):\n    await ep.ask("hi")\n    return 1 / 0\n'
    )
    version = served(lab, "broken/broken", "ready")
    task = lab.submit("doomed", "broken")
    deadline = time.monotonic() + PATIENCE
    while "ZeroDivisionError" not in lab.row(task).reason and time.monotonic() < deadline:
        time.sleep(0.02)
    waiting = lab.row(task)
    assert waiting.state == "blocked" and waiting.reason.startswith("broken.py:7: ZeroDivisionError")
    assert served(lab, "broken/broken", "failing") == version
    environment(lab, "broken/broken", lambda row: row.checked is not None)
    (row,) = json.loads(lab.marlaas("env", "list", "broken", "--json"))
    assert any("ZeroDivisionError" in found["message"] for found in row["findings"])
    lab.marlaas("env", "reload", "broken")
    assert lab.marlaas("logs").count(f"Environment broken: loaded, version {version}") == 2
    path.write_text(path.read_text().replace("1 / 0", "ep.noise.random()"))
    lab.marlaas("wait", str(task))
    assert lab.row(task).state == "done"
