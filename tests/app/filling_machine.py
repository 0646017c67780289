"""Fills what the views of the engine and of the logs show: stages, tenants in line, engines, events, files."""

from __future__ import annotations

import json
import math
from collections.abc import Callable

import pytest

from marlaas.app import questions
from marlaas.app.questions import Memory
from marlaas.engine.home.paths import Home
from marlaas.engine.store.database import insert, insert_all, open_database, transaction
from marlaas.engine.store.rows import day_of

from .filling import HOSTILE, NOW, Filling, fill_hostile

CLEAN = HOSTILE.replace("\ud800", "?")
DEVICES = {"rollout": "core 0", "environment": "cpu", "env arithmetic": "cpu", "training": "core 1", "engine": "cpu"}
LEVELS = ("info", "info", "warning", "info", "error")
PID = 1
"""Of a process that is always there."""


def same_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every machine is this one."""
    looks: dict[str, Callable[..., object]] = {
        "memory": lambda: Memory(25_300_000_000, 21_400_000_000),
        "cores": lambda: 4,
        "account": lambda: "me",
    }
    for name, look in looks.items():
        monkeypatch.setattr(questions, name, look)


def fill_machine(home: Home) -> Filling:
    """An engine in the middle of its work."""
    filling = Filling(home.database)
    filling.engine(pid=PID)
    for tenant, made in (("physics-lab", 3), ("bio", 5), ("bio", 0)):
        filling.task(tenant, "sums", made=made, state="running" if made else "queued")
    _fill(filling, "physics-lab", "bio")
    filling.execute("UPDATE engines SET incarnation = 3, sampler = 'torch'")
    for number, state in ((1, "stopped"), (2, "running")):
        begun = {"started": NOW - 86_400 / number, "heartbeat": NOW - 86_400 / number + 4000}
        filling.insert("engines", incarnation=number, pid=PID, state=state, base="tiny", **begun)
    _write(home, "engine.log", "info: The engine serves.\nerror: It stumbled.\nTraceback (most recent call last):\n")
    _write(home, "rollout.log", "llama_context: n_ctx = 512\n")
    return filling


def fill_cards(home: Home, account: str = "anna") -> None:
    """Two cards: on one a worker of the engine, on the other somebody else."""
    gb = 1_000_000_000
    why = f"gpu 1 is left alone: account {account} holds 12.0 GB of it; `shared_gpus = true` takes it all the same."
    ours = {"pid": PID, "account": "me", "memory": 30 * gb, "ours": True}
    held = ([ours], [{"pid": 7, "account": account, "memory": 12 * gb}])
    filling = Filling(home.database)
    for place, holders in enumerate(held):
        filling.insert(
            "devices",
            uuid=f"GPU-{place}",
            place=place,
            label=f"gpu {place}",
            name="Imaginary H1",
            memory=80 * gb,
            free=(50, 68)[place] * gb,
            utilisation=(0.37, None)[place],
            reason=("", why)[place],
            holders=json.dumps(holders),
            updated=NOW,
        )


def fill_hostile_machine(home: Home) -> Filling:
    """Whatever others wrote is hostile, and files are damaged."""
    filling = fill_hostile(home.database)
    _fill(filling, CLEAN, "\x1b[2J")
    filling.execute("UPDATE stages SET device = ? WHERE stage = 'training'", CLEAN)
    filling.execute("UPDATE engines SET sampler = ?, pid = ?", CLEAN, PID)
    fill_cards(home, CLEAN)
    filling.event("", 10**9, CLEAN)
    filling.event(CLEAN * 500, 1, "error")
    _write(home, "engine.log", f"warning: {CLEAN}\n\x00\x00\n" + "[/]" * 50_000)
    return filling


def _fill(filling: Filling, *tenants: str) -> None:
    (first, second), day = tenants, day_of(NOW)
    database = open_database(filling.path)
    with transaction(database):
        insert_all(database, "stages", (_sample(stage, age) for age in range(600, 0, -1) for stage in DEVICES))
        insert_all(database, "events", (_event(number) for number in range(40)))
        places = (("rollout", first, 12, 0.0), ("training", first, 1, 730_000.0), ("rollout", second, 3, 1420.0))
        insert_all(
            database,
            "standings",
            (dict(zip(("stage", "tenant", "waiting", "behind"), at, strict=True)) for at in places),
        )
        insert(database, "tenants", {"name": second, "weight": 2.0, "created": NOW})
        for task in (1, 2):
            for stage, seconds in (("rollout", 30.0 * task), ("training", 20.0), ("environment", 5.0)):
                used = {"day": day, "task": task, "stage": stage, "tokens": 1000, "seconds": seconds}
                insert(database, "usage", used)
    database.conn.close()


def _sample(stage: str, age: int) -> dict[str, object]:
    """A wave: the stages take turns."""
    phase = list(DEVICES).index(stage)
    busy = max(0.0, math.sin(age / 9 + phase)) if stage != "engine" else 0.04
    row = {"incarnation": 3, "stage": stage, "device": DEVICES[stage], "begun": NOW - age - 0.5, "wall": 1.0}
    return row | {"busy": busy, "waiting": 3.0, "active": 8.0, "ended": 11, "tokens": 90}


def _event(number: int) -> dict[str, object]:
    task = None if number % 4 == 0 else number % 3 + 1
    message = f"Something happened to somebody, number {number}."
    what = {"task": task, "level": LEVELS[number % len(LEVELS)], "kind": "task", "message": message}
    return what | {"created": NOW - 90_000 / (number + 1)}


def _write(home: Home, name: str, text: str) -> None:
    home.logs.mkdir(parents=True, exist_ok=True)
    (home.logs / name).write_text(text, encoding="utf-8")
