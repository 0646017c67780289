"""How fast bases were on this machine: kept in the home, for estimates of what nobody has trained on.

A JSON file by base, sampler and cores, so that other files, settings or limits are measured anew.
"""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Sequence
from pathlib import Path

from ...base import GGUF, BaseModel
from ...devices import own_cores, processor_name
from ...fleet import Copy, CopySpeed
from ...submission import BaseSpeed
from ...tables import add_to_table, read_table
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
    known = read_table(path).get(key)
    if not isinstance(known, dict):
        return None
    until = known.get("until")
    if isinstance(until, int | float) and until < time.time():
        return None
    numbers = [known.get("sampled"), known.get("trained")]
    good = [float(number) for number in numbers if isinstance(number, int | float) and math.isfinite(number)]
    return BaseSpeed(*good) if len(good) == 2 and min(good) > 0 else None


def write_speed(path: Path, key: str, speed: BaseSpeed, until: float | None = None) -> None:
    """Keep a speed, ``until`` a time in seconds since 1970."""
    add_to_table(path, {key: {"sampled": speed.sampled, "trained": speed.trained, "until": until}})


def read_copies(path: Path, base: BaseModel, limit: int) -> tuple[CopySpeed, ...]:
    """The copies of the base that were measured on this processor, with ``limit`` cores or all of them (0)."""
    measured = read_table(path).get(_copies_key(base, limit))
    found = []
    for row in measured if isinstance(measured, list) else ():
        with contextlib.suppress(TypeError, ValueError):
            sampler, weights, seconds, gap = row
            found.append(CopySpeed(Copy(sampler, weights), float(seconds), float(gap)))
    sound = (one for one in found if 0 < one.seconds < math.inf and one.gap >= 0)
    return tuple(one for one in sound if base.gguf or one.copy.weights != GGUF)


def write_copies(path: Path, base: BaseModel, limit: int, measured: Sequence[CopySpeed]) -> None:
    """Keep what was measured together, unless more copies are known; arguments as of ``read_copies``."""
    if len(measured) >= len(read_copies(path, base, limit)):
        rows = [(*one.copy, one.seconds, one.gap) for one in measured]
        add_to_table(path, {_copies_key(base, limit): rows})


def _copies_key(base: BaseModel, limit: int) -> str:
    return f"{base.fingerprint} copies {len(own_cores(limit))} cores of {processor_name()}"
