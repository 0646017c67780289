"""How fast bases were on this machine: kept in the home, for estimates of what nobody has trained on.

A JSON file by base, sampler and cores, so that other files, settings or limits are measured anew.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import time
from pathlib import Path

from ...submission import BaseSpeed
from .step import TASK, Trial


def speed_of(trial: Trial) -> BaseSpeed:
    """The speed that a step of the default task reached."""
    trained = trial.sampled_tokens + trial.prompt_tokens * TASK.group_episodes
    return BaseSpeed(trial.sampled_tokens / trial.sampling, trained / trial.training)


def speed_key(fingerprint: str, sampler: str, cores: int) -> str:
    """The key of a base's speed in the file."""
    return f"{fingerprint} {sampler} {cores} cores"


def read_speed(path: Path, key: str) -> BaseSpeed | None:
    """The speed in the file ``path``; None where there is none, one that is out of date or one that makes no sense."""
    known = _table(path).get(key)
    if not isinstance(known, dict):
        return None
    until = known.get("until")
    if isinstance(until, int | float) and until < time.time():
        return None
    numbers = [known.get("sampled"), known.get("trained")]
    good = [float(number) for number in numbers if isinstance(number, int | float) and math.isfinite(number)]
    return BaseSpeed(*good) if len(good) == 2 and min(good) > 0 else None


def write_speed(path: Path, key: str, speed: BaseSpeed, until: float | None = None) -> None:
    """Keep a speed, ``until`` a time in seconds since 1970; where the file cannot be written, it is measured again."""
    table = _table(path) | {key: {"sampled": speed.sampled, "trained": speed.trained, "until": until}}
    with contextlib.suppress(OSError):
        partial = path.with_name(f"{path.name}.{os.getpid()}")
        partial.write_text(json.dumps(table, indent=1) + "\n", "utf-8")
        partial.replace(path)


def _table(path: Path) -> dict[str, object]:
    try:
        table = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return {}
    return table if isinstance(table, dict) else {}
