"""A task with all that its view can show: bands, ages, an edited environment, two evaluation series, many metrics."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

from .filling import NOW, Filling, reward

CONFIG = {
    "tenant": "physics-lab",
    "name": "two-digit sums",
    "environment": "arithmetic",
    "steps": 60,
    "environment_config": {"digits": 3},
    "policy": {"rank": 16, "alpha": 32.0},
    "train": {"learning_rate": 0.0005, "group_size": 16, "kl": 0.0},
}


def fill_task(path: Path, now: float = NOW) -> Filling:
    """Three tasks; the first one, of 43 steps, has everything, the others a reward curve."""
    filling = Filling(path, now)
    filling.engine()
    filling.environment()
    for name, made in (("two-digit sums", 43), ("two-digit sums, rank 4", 30), ("guess a number", 12)):
        filling.task(name=name, made=made, environment="guess" if name.startswith("guess") else "arithmetic")
    for task, rate in ((1, 0.0005), (2, 0.001), (3, 0.0005)):
        config = {**CONFIG, "train": {**CONFIG["train"], "learning_rate": rate}}  # type: ignore[dict-item]
        filling.execute("UPDATE tasks SET config = ? WHERE id = ?", json.dumps(config), task)
    rows = [(1, step, name, value) for step in range(1, 44) for name, value in _more(step).items()]
    with closing(sqlite3.connect(path)) as connection:
        connection.executemany("INSERT OR REPLACE INTO metrics VALUES (?, ?, ?, ?)", rows)
        connection.commit()
    filling.execute("UPDATE steps SET environment_version = CASE WHEN number < 25 THEN '9f2c41aa' ELSE 'b07755e1' END")
    filling.execute("UPDATE evals SET environment_version = 'e0', series = 'e0' WHERE policy = 1 AND step < 25")
    return filling


def _more(step: int) -> dict[str, float]:
    return {
        "reward_min": max(0.0, reward(1, step) - 0.4),
        "reward_max": min(1.0, reward(1, step) + 0.3),
        "entropy": 2.0 / step,
        "kl": 0.0 if step < 5 else 0.001 * step,
        "length": 30.0 - step / 3,
        "staleness_0": 5.0,
        "staleness_1": 2.0,
        "staleness_2": 1.0,
    }
