"""Trouble with a real engine is seen as such: what blocks, what never asks, an engine that was killed, what it knew."""

from __future__ import annotations

import json
import sqlite3
import time
from contextlib import closing

import pytest

from ..conftest import Lab
from ..served import environment, served
from ..terminal import terminal

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

DIVIDES = """
from marlaas.plugins import env

@env
async def divides(ep):
    await ep.ask("hi")
    return 1 / 0
"""
MUTE = """
from marlaas.plugins import env

@env
async def mute(ep):
    return 1.0
"""


def played(lab: Lab, environment: str) -> int:
    """Episodes of an environment that have ended."""
    with closing(sqlite3.connect(f"file:{lab.home.database}?mode=ro", uri=True)) as connection:
        sql = "SELECT coalesce(sum(episodes), 0) FROM outcomes WHERE environment = ?"
        return int(connection.execute(sql, [environment]).fetchone()[0])


def test_a_blocked_task_and_a_killed_engine_are_seen_as_such(lab: Lab) -> None:
    path = lab.home.plugins / "divides.py"
    path.write_text(DIVIDES)
    served(lab, "divides/divides", "ready")
    running = lab.submit("goes on running", steps=5000, train={"patience": 5000})
    doomed = lab.submit("divides by zero", "divides")
    with terminal(lab.home) as screen:
        screen.until("■ blocked", "divides.py:7: ZeroDivisionError", "1 blocked", "● running")
        blocked = {each["id"]: each for each in json.loads(lab.marlaas("list", "--filter", "state:blocked", "--json"))}
        listed = blocked[doomed]
        assert running not in blocked and listed["state"] == "blocked"
        assert lab.show(doomed)["state"] == "blocked"
        assert listed["reason"].startswith("divides.py:7: ZeroDivisionError: division by zero, on all of ")
        lab.marlaas("pause", str(doomed))  # so that nobody tries the environment again
        served(lab, "divides/divides", "failing")
        lab.until(running, 1)

        lab.kill_engine()
        killed = time.time()
        screen.press("g")  # the cursor was on the doomed one: narrow tables say why of the line under it
        screen.until("○ waiting", "waiting for the engine", "engine: ✗ down", "S starts one")
        assert "● running" not in screen.text()
        listing = lab.marlaas("list")
        assert "○ waiting" in listing and "waiting for the engine" in listing and "● running" not in listing
        screen.press("S")
        screen.until("engine: ● alive", "● running")
        screen.press("q")
        screen.end()

    known = environment(lab, "divides/divides", lambda row: row.updated > killed and row.state != "loading")
    assert known.state == "failing" and known.line == 7, "nothing has tried it since"
    path.write_text(DIVIDES.replace("1 / 0", "ep.noise.random()"))
    served(lab, "divides/divides", "ready", other_than=known.version)
    lab.marlaas("resume", str(doomed))
    lab.marlaas("wait", str(doomed))
    lab.marlaas("cancel", str(running))


def test_an_environment_that_never_asks_is_played_by_nobody(lab: Lab) -> None:
    (lab.home.plugins / "mute.py").write_text(MUTE)
    served(lab, "mute/mute", "ready")
    task = lab.submit("says nothing", "mute", steps=300)
    row = lab.until(task, 1)
    assert row.state == "paused" and row.reason.startswith("mute/mute never called `ep.ask` in "), row
    assert played(lab, "mute/mute") == 0
    checked = environment(lab, "mute/mute", lambda row: row.checked is not None)
    assert any(one.level == "error" and "never calls `ep.ask`" in one.message for one in checked.findings)
