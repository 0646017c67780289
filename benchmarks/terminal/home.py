"""Homes as the terminal application finds them, without an engine: rows flow into a database, written as engines do.

Run as ``python -P benchmarks/terminal/home.py HOME SECONDS`` it is the engine of that home as far as anybody can see:
its heart beats, and every ``SECONDS`` seconds the next task makes a step, until it is killed.
"""

from __future__ import annotations

import json
import math
import os
import sys
import time
from collections.abc import Iterator
from itertools import cycle
from pathlib import Path
from typing import Any

from sqlite_utils import Database

from marlaas.engine.home.paths import Home
from marlaas.engine.store.database import insert, insert_all, open_database, transaction

TENANTS = ("physics", "bio", "chemistry", "maths")
STEPS = 400
"""Steps that a task has made when it is filled in."""
LENGTH = 60
"""Tokens of a trajectory."""
GROUPS, MEMBERS = 8, 8
METRICS = ("reward", "loss", "entropy", "grad_norm", "clipped", "gap_mean", "gap_max", "staleness", "tokens", "seconds")
TURNS = json.dumps([{"role": "user", "text": "17 + 25 = ?"}, {"role": "assistant", "text": "That is 42. " * 10}])


def filled(folder: Path, tasks: int, steps: int = STEPS, trajectories: int = 0) -> Home:
    """A home with running tasks that have made some steps; the first one with so many stored trajectories."""
    home = Home(folder).create()
    database = open_database(home.database)
    with transaction(database):
        insert(database, "engines", {**beat(), "pid": os.getpid(), "started": time.time(), "base": "tiny"})
        for number in range(1, tasks + 1):
            _task(database, number, steps)
        for kind in range(200):
            insert(database, "events", event(f"Something happened, number {kind}.", kind % tasks + 1))
    if trajectories:
        with transaction(database):
            _experience(database, trajectories)
    database.conn.close()
    return home


def event(message: str, task: int) -> dict[str, Any]:
    """A row of the log."""
    return {"task": task, "level": "info", "kind": "task", "message": message, "created": time.time()}


def beat() -> dict[str, Any]:
    """What a heartbeat writes."""
    return {"state": "running", "heartbeat": time.time()}


def metrics(task: int, step: int) -> dict[str, float]:
    """A curve that learns and wobbles, under every name."""
    reward = min(1.0, 0.15 + 0.75 * (1 - math.exp(-step / 100)) + 0.06 * math.sin(1.7 * step + task))
    return {name: reward if name == "reward" else 0.01 * ((step + task) % 97) for name in METRICS}


def _task(database: Database, number: int, steps: int) -> None:
    now = time.time()
    row = {"id": number, "tenant": TENANTS[number % len(TENANTS)], "name": name(number), "environment": "arithmetic"}
    row |= {"state": "running", "config": json.dumps({"name": name(number), "train": {"groups_per_step": GROUPS}})}
    row |= {"steps": 10_000_000, "created": now - 3600, "started": now - 3500}
    insert(database, "tasks", row)
    insert(database, "policies", {"id": number, "task": number, "name": "policy", "config": "{}", "step": 0})
    for step in range(1, steps + 1):
        make_step(database, number, step)
    for step in range(0, steps, 50):
        measured = {"policy": number, "step": step, "version": None, "environment_version": "e1", "series": "e1"}
        insert(database, "evals", {**measured, "score": 0.5, "stderr": 0.03, "n": 64, "floor": 0.08, "created": now})


def name(task: int) -> str:
    """A name that is found on the screen."""
    return f"task-{task:02}-sums"


def make_step(database: Database, task: int, step: int) -> None:
    """What a commit writes, as far as screens read it."""
    now = time.time()
    version = {"policy": task, "number": step, "name": f"t{task}-v{step}-i1", "incarnation": 1, "state": "committed"}
    version |= {"checksum": "0" * 16, "path": "adapters/x.safetensors", "size": 1_300_000, "label": "", "created": now}
    made = {"policy": task, "number": step, "version": insert(database, "versions", version), "incarnation": 1}
    insert(database, "steps", {**made, "seconds": 0.4, "created": now})
    rows = [{"policy": task, "step": step, "name": key, "value": value} for key, value in metrics(task, step).items()]
    insert_all(database, "metrics", rows)
    database.execute("UPDATE policies SET step = ? WHERE id = ?", [step, task])


def _experience(database: Database, count: int) -> None:
    for number in range(-(-count // MEMBERS)):
        step = number // GROUPS + 1
        group = {"policy": 1, "split": "train", "number": number, "instance": number, "version": step - 1}
        group |= {"environment_version": "e1", "state": "consumed", "step": step, "created": time.time()}
        key = insert(database, "groups", group)
        insert_all(database, "trajectories", (_trajectory(key, member) for member in range(MEMBERS)))


def _trajectory(group: int, member: int) -> dict[str, Any]:
    return {
        "group": group,
        "member": member,
        "agent": "policy",
        "status": "ok",
        "reward": float(member % 2),
        "advantage": 0.5 - member % 2,
        "tokens": bytes(4 * LENGTH),
        "mask": bytes(LENGTH),
        "logprobs": bytes(4 * LENGTH),
        "spans": "[]",
        "turns": TURNS,
        "parts": '{"correct": 1.0}',
        "metrics": "{}",
        "seconds": 0.2,
    }


def serve(home: Home, interval: float) -> Iterator[int]:
    """Pretend to be an engine: a step of one task after the other; yields the number of steps so far."""
    database = open_database(home.database)
    database.execute("UPDATE engines SET pid = ?, started = ?", [os.getpid(), time.time()])
    steps = dict(database.conn.execute("SELECT id, step FROM policies").fetchall())
    began, last = time.monotonic(), 0.0
    for made, task in enumerate(cycle(steps), 1):
        steps[task] += 1
        with transaction(database):
            make_step(database, task, steps[task])
            if time.monotonic() - last >= 1:
                last = time.monotonic()
                database.execute("UPDATE engines SET state = 'running', heartbeat = ?", [time.time()])
        yield made
        time.sleep(max(0.0, began + made * interval - time.monotonic()))


if __name__ == "__main__":
    for _ in serve(Home(Path(sys.argv[1])), float(sys.argv[2])):
        pass
