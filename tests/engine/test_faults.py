"""Fault points: off by default, deadly once where they are armed, and recorded either way."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from marlaas.engine import faults
from marlaas.engine.faults import Point, reach
from tests.arming import arm, disarm, recorded

ENGINE = Path(faults.__file__).parent
CODE = """
import sys
from marlaas.engine.faults import Point, reach, switch_on
switch_on("worker")
for _ in range(int(sys.argv[1])):
    reach(Point.STATE_NAMED)
"""


def reaches(folder: Path, times: int) -> int:
    """A process of its own reaches one point ``times`` times; its exit status."""
    command = [sys.executable, "-P", "-c", CODE, str(times)]
    return subprocess.run(command, env=os.environ | {faults.VARIABLE: str(folder)}, timeout=50).returncode


@pytest.mark.processes
def test_who_reaches_an_armed_point_often_enough_dies_once(tmp_path: Path) -> None:
    arm(tmp_path, Point.STATE_NAMED, 3, "first")
    assert reaches(tmp_path, 2) == 0
    assert reaches(tmp_path, 9) == -signal.SIGKILL
    assert reaches(tmp_path, 9) == 0
    record = recorded(tmp_path)
    assert [one.died for one in record] == [False] * 4 + [True] + [False] * 9
    assert {one.process for one in record} == {"worker"} and not disarm(tmp_path, Point.STATE_NAMED)


def test_nothing_is_reached_unless_it_is_switched_on(tmp_path: Path) -> None:
    arm(tmp_path, Point.COMMIT_READY, 1, "first")
    reach(Point.COMMIT_READY)
    assert recorded(tmp_path) == []
    assert disarm(tmp_path, Point.COMMIT_READY) and not disarm(tmp_path, Point.COMMIT_READY)


def test_every_point_stands_somewhere_in_the_engine() -> None:
    used = {
        name
        for path in ENGINE.rglob("*.py")
        if path.name != "faults.py"
        for name in re.findall(r"Point\.([A-Z_]+)", path.read_text(encoding="utf-8"))
    }
    assert {point.name for point in Point} == used
