"""A home with a task of several policies, written by the store itself; agents may be called what a plugin likes."""

from __future__ import annotations

import json
from contextlib import closing
from pathlib import Path

from marlaas.engine.store.store import Store
from tests.engine.store.playing import duel

from .filling import HOSTILE, NOW, Filling


def fill_duel(path: Path, now: float = NOW, hostile: bool = False) -> Filling:
    """Task 1 has one policy, task 2 trains the player and the judge beside a pool and a frozen version."""
    filling = Filling(path, now)
    filling.engine()
    filling.task(made=3)
    store = Store(path, "tiny")
    with closing(store):
        task, _ = duel(store, path)
    filling.execute("UPDATE tasks SET state = 'running', created = ?, steps = 20 WHERE id = ?", now - 60, task)
    filling.execute("DELETE FROM engines WHERE incarnation = ?", store.incarnation)
    filling.execute("UPDATE versions SET created = ?", now - 30)
    if hostile:
        agents = {"first": "player", HOSTILE.encode("utf-8", "replace").decode(): "rivals", "": "judge", "[b]x": "old"}
        filling.execute("UPDATE tasks SET config = json_set(config, '$.agents', json(?))", json.dumps(agents))
        filling.execute("UPDATE trajectories SET agent = ? WHERE agent = 'second'", list(agents)[1])
        filling.execute("UPDATE trajectories SET speaker = ? WHERE speaker = 'old'", list(agents)[1])
    return filling
