"""``kill -9``, lost workers, full memory, locks, yields and drains: no committed step is lost, none is made twice."""

from __future__ import annotations

import itertools
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from marlaas.engine.daemon import control
from marlaas.engine.daemon.control import holder
from marlaas.engine.store.queries import machine
from marlaas.engine.store.queries.reader import Reader
from tests.oracle.audit import audit

from .conftest import Lab, awaited, configured, consumed_once

pytestmark = [pytest.mark.processes, pytest.mark.timeout(600)]

ENDLESS: dict[str, Any] = {"steps": 2000, "train": {"patience": 1000, "max_staleness": 1}}


def test_whoever_is_killed_nothing_is_lost_or_doubled(lab: Lab) -> None:
    task = lab.submit("sums", **ENDLESS)
    for workers in (("rollout", "marlaas.plugins.host"), ("training",)):
        lab.until(task, lab.row(task).step + 1)
        victims = [lab.worker_pids(worker) for worker in workers]
        assert all(victims)
        for pid in itertools.chain(*victims):
            os.kill(pid, signal.SIGKILL)
        lab.until(task, lab.row(task).step + 2)
        for worker, pids in zip(workers, victims, strict=True):
            assert not set(pids) & set(lab.worker_pids(worker))
    before = lab.row(task).step
    lab.kill_engine()
    committed = lab.row(task)
    assert committed.state == "running" and committed.step >= before
    lab.marlaas("engine", "start")
    lab.until(task, committed.step + 2)
    lab.marlaas("cancel", str(task))
    assert lab.row(task).state == "cancelled" and "cancelled" in lab.marlaas("resume", str(task), code=2)
    consumed_once(lab.home, task)


@pytest.mark.slow
def test_pause_drain_and_cancel_end_between_two_steps(lab: Lab) -> None:
    """Every day, tasks are paused, drained and cancelled in ``tests/engine/train`` and ``tests/engine/daemon``."""
    task = lab.submit("long", **ENDLESS)
    lab.until(task, 1)
    lab.marlaas("pause", str(task))
    paused = lab.row(task)
    assert paused.state == "paused"
    lab.marlaas("resume", str(task))
    lab.until(task, paused.step + 1)
    assert "serves" in lab.marlaas("engine", "run", code=2), "a second engine is refused"
    lab.marlaas("engine", "drain")
    assert holder(lab.home.lock) is None and not control.drain(lab.home, print)
    lab.marlaas("engine", "status", code=3)
    stood = lab.row(task)
    assert stood.state == "running" and stood.step >= 2
    with Reader(lab.home.database) as reader:
        engine, (waiting,) = reader.engine(), reader.all("SELECT count(*) FROM commands WHERE done IS NULL")
    assert engine is not None and engine.state == "stopped" and waiting[0] == 0
    control.ensure_running(lab.home)
    lab.until(task, stood.step + 1)
    lab.marlaas("cancel", str(task))
    consumed_once(lab.home, task)


def outlived(lab: Lab, worker: str, steps: int) -> None:
    """Two tasks train to their end although a worker of that name is killed meanwhile."""
    tasks = [
        lab.submit("sums", "arithmetic", steps=steps, train={"max_staleness": 1}),
        lab.submit("guesses", "guess", steps=steps),
    ]
    lab.until(tasks[0], 2)
    (pid,) = lab.worker_pids(worker)
    os.kill(pid, signal.SIGKILL)
    lab.marlaas("wait", *map(str, tasks))
    for task in tasks:
        assert lab.show(task)["step"] == steps
        consumed_once(lab.home, task)


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """A home with two kinds of samplers."""
    with configured(tmp_path_factory.mktemp("both"), '[rollout]\nsamplers = ["llama.cpp", "torch"]\n') as lab:
        yield lab


@pytest.mark.slow
def test_tasks_train_on_both_samplers_and_outlive_one(both: Lab) -> None:
    """Every day, one of two real samplers dies in ``tests/engine/machine``."""

    def devices() -> dict[str, str]:
        return {row["name"]: row["device"] for row in json.loads(both.marlaas("engine", "status", "--json"))["workers"]}

    outlived(both, "rollout-2", steps=6)
    stages = json.loads(both.marlaas("stats", "--json", "--since", "1h"))["stages"]
    rollout = [stage for stage in stages if stage["stage"] == "rollout"]
    assert len({stage["device"] for stage in rollout}) == 2 and all(stage["ended"] for stage in rollout), stages
    # Tasks may reach their end on one sampler, before the other has a successor.
    workers = awaited(lambda: now if {"rollout", "rollout-2"} <= {*(now := devices())} else None) or {}
    assert workers["rollout"] != workers["rollout-2"]


@pytest.mark.slow
def test_a_deterministic_task_repeats_itself_on_both(both: Lab) -> None:
    settled = {"deterministic": True, "max_staleness": 0}
    first = both.submit("once", steps=3, train=settled)
    both.marlaas("wait", str(first))
    others = [both.submit(f"other {number}", "guess", steps=4) for number in range(2)]
    again = both.submit("twice", steps=3, train=settled)
    both.marlaas("wait", str(again), *map(str, others))
    with Reader(both.home.database) as reader:
        checksums = [{row.number: row.checksum for row in reader.versions(task)} for task in (first, again)]
    assert checksums[0] == checksums[1] and max(checksums[0]) == 3


@pytest.mark.slow
def test_tasks_outlive_one_of_two_trainers(tmp_path: Path) -> None:
    """Every day, real trainers die in ``tests/engine/machine``."""
    with configured(tmp_path, "[training]\ntrainers = 2\n") as lab:
        before = {name: lab.worker_pids(name) for name in ("rollout", "training-2")}
        outlived(lab, "training", steps=25)
        assert {name: lab.worker_pids(name) for name in before} == before, "nothing else was started again"
        awaited(lambda: lab.worker_pids("training"))


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
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stdout.readline() == "held\n"
        yield
        process.communicate()


@pytest.mark.slow
def test_a_lock_of_seconds_pauses_and_delays_nothing(lab: Lab) -> None:
    """Every day, locks are held in ``tests/engine/store`` and while the tasks of ``tests/engine/train`` are trained."""
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
    lab.until(steady, stood + 5)
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
        messages = [
            event.message
            for task in (steady, asking)
            for event in machine.newest_events(reader, machine.EventFilter(task=task))
        ]
    lab.marlaas("cancel", str(steady), str(asking))
    assert slowest is not None and slowest < LATE
    assert not [line for line in messages if "paused" in line or "database" in line]


LIMIT = 10.0
"""Seconds that somebody who wants the machine has to wait."""
STEPS = 60
"""More than an engine makes before it yields, however fast it is."""
EXACT = {"deterministic": True, "max_staleness": 0, "groups_per_step": 2, "group_size": 4}


def yields(lab: Lab, *words: str) -> None:
    """Yield, and see all workers end in time."""
    workers = [psutil.Process(pid) for pid in lab.worker_pids("marlaas.engine.machine.workers.host")]
    lab.marlaas("engine", "yield", *words)
    _, alive = psutil.wait_procs(workers, timeout=LIMIT)
    assert not alive and not lab.worker_pids("marlaas.engine.machine.workers.host")


@pytest.mark.slow
def test_nothing_is_lost_whenever_the_machine_is_wanted(tmp_path: Path) -> None:
    """Every day, tasks yield in ``tests/engine/queue/scheduler``."""
    with configured(tmp_path, "") as lab:
        exact = lab.submit("exact", environment="guess", steps=STEPS, train=EXACT)
        lab.until(exact, 2)
        yields(lab, "--for", "2h")
        stood = lab.row(exact)
        assert stood.state == "queued" and "has yielded the machine until" in stood.reason
        late = lab.submit("late", steps=6, eval={"every": 2})
        lab.kill_engine()
        control.ensure_running(lab.home)
        assert json.loads(lab.marlaas("engine", "status", "--json"))["rest"]["kind"] == "yielded"
        assert not lab.worker_pids("marlaas.engine.machine.workers.host") and lab.row(exact).step == stood.step
        lab.marlaas("engine", "yield", "--for", "1s")
        lab.until(late, 1)
        yields(lab)
        lab.marlaas("engine", "resume")
        yields(lab)  # while the workers start
        lab.marlaas("engine", "resume")
        whole = lab.submit("whole", environment="guess", steps=STEPS, train=EXACT)
        lab.marlaas("wait", str(exact), str(late), str(whole))
        for task in (exact, late, whole):
            consumed_once(lab.home, task)
        with Reader(lab.home.database) as reader:
            broken, unbroken = ([row.checksum for row in reader.versions(task)] for task in (exact, whole))
            taught = [step.step for step in reader.steps(whole) if step.metrics["no_signal"] < 1]
        # groups whose rewards are all equal leave the adapter as it is
        assert broken == unbroken and len(set(unbroken)) == len(taught) + 1 > STEPS // 2
        report = audit(lab.home.root, updates=False)
        assert not report.problems, report.problems
