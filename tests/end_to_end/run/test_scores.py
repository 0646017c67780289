"""What a real task's scores rest on: few rows, several samples, an edited comment, and pass@8 from what is stored."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from statistics import fmean, stdev

import pytest

from ..conftest import Lab
from ..served import served

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

ROWS = '''
from marlaas.plugins import env

def rows(split):
    first = {"train": 0, "eval": 500, "test": 900}[split]
    return [{"number": first + index} for index in range(10)]

@env(data=rows)
async def ends(ep, task):
    """Rewards replies with an even number of characters."""
    reply = await ep.ask(f"Say something about {task['number']}.")
    return float(len(reply.text) % 2 == 0)
'''


def stored_rewards(home: Path, task: int, step: int) -> dict[int, list[float]]:
    """Graded anew from the stored replies of an evaluation, by prompt."""
    found: dict[int, list[float]] = {}
    with closing(sqlite3.connect(home)) as database:
        rows = database.execute(
            'SELECT g.number, j.turns FROM trajectories j JOIN groups g ON g.id = j."group"'
            " JOIN policies p ON p.id = g.policy WHERE p.task = ? AND g.step = ? AND g.split = 'eval'",
            [task, step],
        )
        for number, turns in rows:
            said = [turn["text"] for turn in json.loads(turns) if turn["role"] == "assistant"]
            found.setdefault(number, []).append(float(len(said[0]) % 2 == 0))
    return found


def test_ten_rows_eight_samples_and_an_edited_comment(lab: Lab) -> None:
    path = lab.home.plugins / "ends.py"
    path.write_text(ROWS)
    first = served(lab, "ends/ends", "ready")
    measure = {"prompts": 64, "samples": 8, "temperature": 1.0, "every": 2}
    task = lab.submit("ends", "ends", steps=6, eval=measure, train={"deterministic": True, "max_staleness": 0})
    lab.until(task, 2)
    path.write_text(ROWS.replace("@env", "# Even numbers.\n@env"))
    served(lab, "ends/ends", "ready", other_than=first)
    lab.marlaas("wait", str(task))
    shown = lab.show(task)
    assert [row["step"] for row in shown["eval"]] == [0, 2, 4, 6], "no series began"
    assert len({row["series"] for row in shown["eval"]}) == 1
    for row in shown["eval"]:
        rewards = stored_rewards(lab.home.database, task, row["step"])
        assert [len(one) for one in rewards.values()] == [8] * 10, "ten rows are ten prompts"
        means = [fmean(one) for one in rewards.values()]
        assert row["score"] == pytest.approx(fmean(means), rel=1e-12)  # the order of sums
        assert row["stderr"] == pytest.approx(stdev(means) / 10**0.5, rel=1e-12)  # likewise
        passed = [any(one) for one in rewards.values()]
        assert row["pass_at"] == row["best_of"] == fmean(passed)
        assert (row["n"], row["failures"], row["prompts"], row["samples"]) == (80, 0, 10, 8)
    assert "measured on 10 prompts, 8 samples of each, pass@8" in " ".join(lab.marlaas("show", str(task)).split())
    assert "Only 10 of 64 held-out prompts differ" in lab.marlaas("logs", str(task))
