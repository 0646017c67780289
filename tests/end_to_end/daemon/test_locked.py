"""Another program holds the database's lock for seconds while a real engine trains."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from marlaas.engine.store.queries.reader import Reader

from ..conftest import Lab

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

HELD = 6.0
"""Seconds for which the lock is held."""
LATE = 4.0
"""Seconds that a question of an environment may take, which the engine's loop hears, passes on and answers: ``asking``
asks ten times a second. Where the loop waits for the lock, one of them takes nearly all of ``HELD``; where it does not,
milliseconds, and a machine that is busy has the rest."""
ASKING = '''
import asyncio
import time
from marlaas.plugins import Episode, env


@env
async def asking(ep: Episode) -> float:
    """Says how long the engine takes to answer."""
    began, slowest = time.monotonic(), 0.0
    for _ in range(20):
        await asyncio.sleep(0.1)
        asked = time.monotonic()
        reply = await ep.ask(f"{ep.rng.randint(0, 99_999)}+1=", max_tokens=2)
        slowest = max(slowest, time.monotonic() - asked)
    ep.log(began=began, ended=time.monotonic(), slowest=slowest)
    return float(len(reply.text))
'''
HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None, timeout=30)
connection.execute("BEGIN EXCLUSIVE")
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def held(database: Path) -> Iterator[None]:
    """Another process has the lock."""
    command = [sys.executable, "-c", HOLDER, str(database)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout is not None and holder.stdout.readline() == "held\n"
        yield
        holder.communicate()


def test_a_lock_of_seconds_pauses_and_delays_nothing(lab: Lab) -> None:
    (lab.home.plugins / "asking.py").write_text(ASKING)
    steady = lab.submit("steady", steps=100_000, train={"max_staleness": 1})
    size = {"groups_per_step": 1, "group_size": 2, "max_staleness": 1}
    asking = lab.submit(
        "asking", "asking", steps=1000, train=size, sampling={"max_episode_tokens": 1000}, eval={"prompts": 2}
    )
    lab.until(asking, 1)
    with held(lab.home.database):
        began = time.monotonic()
        stood = lab.row(steady).step
        while time.monotonic() < began + HELD:
            assert lab.row(steady).step == stood, "nothing is committed meanwhile"
            time.sleep(0.05)  # the engine is another process: there is nothing to await
        ended = time.monotonic()
    assert lab.until(steady, stood + 5).step >= stood + 5
    lab.until(asking, lab.row(asking).step + 2)
    rows = (lab.row(steady), lab.row(asking))
    assert [row.state for row in rows] == ["running", "running"], [row.reason for row in rows]
    with Reader(lab.home.database) as reader:
        slowest = reader.all(
            "SELECT max(json_extract(j.metrics, '$.slowest')) FROM trajectories j"
            ' JOIN groups g ON g.id = j."group" JOIN policies p ON p.id = g.policy WHERE p.task = ?'
            " AND json_extract(j.metrics, '$.began') < ? AND json_extract(j.metrics, '$.ended') > ?",
            asking,
            ended,
            began,
        )[0][0]
        said = [event.message for task in (steady, asking) for event in reader.events(task)]
    lab.marlaas("cancel", str(steady), str(asking))
    assert slowest is not None and slowest < LATE
    assert not [line for line in said if "paused" in line or "database" in line]
