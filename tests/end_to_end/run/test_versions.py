"""Versions with a real engine: a task goes back to one, another begins from one, and the audit proves both."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.oracle.audit import audit

from ..conftest import Lab, consumed_once

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]


def test_a_task_goes_back_and_others_begin_from_its_version(lab: Lab, tmp_path: Path) -> None:
    first = lab.submit("first", steps=4, keep={"every": 1})
    lab.marlaas("wait", str(first))
    back = json.loads(lab.marlaas("adapters", "rollback", str(first), "--version", "2", "--json"))
    assert (back["task"], back["step"], back["void"]) == (first, 2, 2)
    lab.marlaas("wait", str(first))
    consumed_once(lab.home, first)
    assert lab.show(first)["step"] == 4
    assert "Version 4 of task" in lab.marlaas("adapters", "rollback", str(first), "--version", "4", code=2)

    lab.marlaas("adapters", "export", str(first), "--version", "3", "--out", str(tmp_path / "taken"))
    second = lab.submit("second", steps=2, policy={"start": f"{first}@3"})
    third = lab.submit("third", steps=2, policy={"start": str(tmp_path / "taken")})
    lab.marlaas("wait", str(second), str(third))
    sums = {
        (version["task"], version["number"]): version["checksum"]
        for version in json.loads(lab.marlaas("adapters", "list", "--json"))
    }
    assert sums[second, 0] == sums[third, 0] == sums[first, 3]
    report = audit(lab.home.root)
    own = tuple(f"task {task}" for task in (first, second, third))  # other tests damage theirs
    assert not [problem for problem in (*report.problems, *report.lost) if problem.startswith(own)]
    assert report.proven["tasks begin where they were told to"] >= 1
