"""Rows that a task file names, drawn by difficulty, through the real program; its engine is killed on the way."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

import pytest

from marlaas.plugins.data import row_at

from ..conftest import Lab, consumed_once

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

PLUGIN = """
from marlaas.plugins import env


@env
async def letters(ep, task):
    reply = await ep.ask(task["question"], max_tokens=4)
    ep.log(number=task["number"])
    return reply.text[:1] in task["answer"]
"""


def test_rows_of_a_task_file_are_drawn_by_difficulty(lab: Lab, tmp_path: Path) -> None:
    """Of 40 rows, four for evaluation: half of the others are solved by any reply."""
    lab.home.plugins.joinpath("letters.py").write_text(PLUGIN)
    every = "".join(map(chr, range(32, 127))) + "\n"
    rows = [
        {"question": f"larger of {n} and 50", "answer": every if n % 2 else "4", "number": n} for n in range(10, 50)
    ]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    data = {"path": str(tmp_path / "rows.jsonl"), "limit": 30}
    refused = lab.home.root / "refused.toml"
    refused.write_text('tenant = "lab"\nname = "x"\nenvironment = "letters"\n')
    assert "'letters/letters' has no rows of its own" in lab.marlaas("submit", str(refused), code=2)
    train = {"groups_per_step": 4, "group_size": 4, "sampling": "difficulty"}
    task = lab.submit("letters", "letters", steps=12, train=train, data=data)
    lab.until(task, 4)
    lab.kill_engine()
    lab.marlaas("engine", "start")
    lab.marlaas("wait", str(task))
    consumed_once(lab.home, task)
    lab.sound(task)
    metrics = lab.show(task)["metrics"]
    assert metrics["rows"] == 30 and metrics["epoch"] >= 48 / 30
    assert metrics["prompts_solved"] >= 12 and "of 30 rows" in lab.marlaas("show", str(task))
    with sqlite3.connect(f"file:{lab.home.database}?mode=ro", uri=True) as connection:
        drawn = connection.execute("SELECT position, row FROM draws WHERE attempt = 0 ORDER BY number").fetchall()
    assert all(row_at("train", 0, position, 30) == row for position, row in drawn)
    assert [position for position, _ in drawn] == sorted({position for position, _ in drawn}) and len(drawn) == 48
