"""``list``, ``show`` and ``rollouts`` say what goes wrong in what a task learns."""

from __future__ import annotations

import json

import pytest

from ...commanding import Commander, FakeEngine
from ...filling import HOSTILE, Filling
from ...filling_rollouts import fill_rollouts


@pytest.fixture
def wrong(filling: Filling, engine: FakeEngine) -> int:
    """A task with a finding that holds, shown by two rollouts, and one that is over."""
    task = fill_rollouts(filling, 10)
    common = {"policy": 1, "pending": 0, "created": 1.0}
    moved, shown = json.dumps({"moved": 1.5}), json.dumps([3, 1])
    filling.insert("findings", code="large_steps", step=8, evidence=moved, rollouts=shown, holds=1, **common)
    filling.insert("findings", code="one_reply", step=9, evidence=moved, rollouts="[]", holds=0, **common)
    return task


def test_show_has_what_was_found(wrong: int, marlaas: Commander) -> None:
    lines = [" ".join(text.split()) for text in marlaas("show", str(wrong)).out.splitlines()]
    first = lines.index("finding Steps too large at step 8")
    assert lines[first + 1].startswith("evidence a step changes the log-probability")
    assert lines[first + 2].startswith("what to do Begin a new task")
    assert lines[first + 3] == f"rollouts 3, 1: `marlaas rollouts {wrong} --finding large_steps`"
    assert lines[first + 4] == "finding One reply for every prompt at step 9, over by now"
    shown = marlaas("show", str(wrong), "--json").json["findings"]
    assert [(one["code"], one["holds"], one["step"]) for one in shown] == [
        ("one_reply", False, 9),
        ("large_steps", True, 8),
    ]
    assert shown[1]["evidence"] == {"moved": 1.5} and shown[1]["rollouts"] == [3, 1] and shown[1]["advice"]


def test_list_marks_the_task(wrong: int, marlaas: Commander) -> None:
    listed = marlaas("list").out
    assert "● running !" in listed and "Steps too large at step 8" in listed
    assert marlaas("list", "--json").json[0]["findings"][1]["code"] == "large_steps"


def test_the_rollouts_that_show_it(wrong: int, marlaas: Commander) -> None:
    records = marlaas("rollouts", str(wrong), "--finding", "large_steps", "--json").json
    assert [record["id"] for record in records] == [3, 1]
    assert marlaas("rollouts", str(wrong), "--finding", "large_steps").out.count("What is") == 2
    said = marlaas("rollouts", str(wrong), "--finding", "large")
    assert said.code == 2 and said.err.endswith("no finding 'large'.\n  It has one_reply, large_steps.\n")


def test_foreign_names_are_shown_safely(filling: Filling, marlaas: Commander) -> None:
    task, name = filling.task("sums"), HOSTILE.replace("\ud800", "")
    evidence = json.dumps({name: 1.0})
    filling.insert(
        "findings", policy=1, code=name, step=1, evidence=evidence, rollouts="[]", holds=1, pending=0, created=1.0
    )
    assert all(letter.isprintable() for text in marlaas("show", str(task)).out.splitlines() for letter in text)
    assert all(letter.isprintable() for text in marlaas("list").out.splitlines() for letter in text)
