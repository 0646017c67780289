"""Eight tasks here against eight TRL processes, as a user would wait: from nothing running to all of them trained.

Ours: ``marlaas submit`` of eight task files on a home that does not exist yet, until the last is done. Theirs: eight
processes, one after another with all cores each, and all at once with one thread each. Every task has an environment
folder and prompts of its own; the process of the same number reads the same prompts.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader

from ..machinery.cores import all_cores
from ..report.figures import Row, Section, Series
from . import tables, trl_side, workload as fixed
from .marlaas_side import command, settings, task_file
from .runs import Arm
from .trl_venv import TRL, ensure_trl
from .workload import SHORT

TASKS = 8
POLL = 0.2
PATIENCE = 900.0
"""Seconds that eight tasks may take."""
OURS = {"shipped defaults": Arm(), "llama.cpp": Arm(sampler="llama.cpp")}
IN_SEQUENCE, IN_PARALLEL = f"TRL {TRL}, one after another", f"TRL {TRL}, all at once"
GOAL = "6 ×"


@dataclass(frozen=True)
class Case:
    """So many tasks, how long they train, and how often all arms are tried."""

    tasks: int
    steps: int
    repetitions: int


Waits = Mapping[str, Sequence[float]]
"""Seconds from nothing to all done, by arm."""


def measure(quick: bool) -> Section:
    """About 12 minutes; one and a half when quick. TRL's own environment is made on first use, which is not timed."""
    python = ensure_trl()
    cases = [Case(2, 2, 1)] if quick else [Case(TASKS, 20, 2), Case(TASKS, 60, 1)]
    found = {case: run(python, case) for case in cases}
    return Section("eight_trl", f"{TASKS} tasks, beside {TASKS} TRL {TRL} processes", method(), rows(found))


def run(python: Path, case: Case) -> Waits:
    """Every arm in turn, as often as the case says."""
    arms = {
        IN_SEQUENCE: partial(theirs, python, case, at_once=1),
        IN_PARALLEL: partial(theirs, python, case, at_once=case.tasks),
        **{name: partial(ours, case, arm) for name, arm in OURS.items()},
    }
    found: dict[str, list[float]] = {name: [] for name in arms}
    for _ in range(case.repetitions):
        for name, arm in arms.items():
            found[name].append(arm())
            print(f"  {case.steps} steps, {name}: {found[name][-1]:.1f} s", flush=True)
    return found


def theirs(python: Path, case: Case, at_once: int) -> float:
    """Seconds that the TRL processes take, ``at_once`` of them at a time.

    One at a time has a thread on each core. More have one thread each and share all cores, if two pools would spin
    against each other.
    """
    began = time.monotonic()
    with ThreadPoolExecutor(at_once) as pool:
        threads = len(all_cores()) if at_once == 1 else 1
        single = partial(trl_side.run, python, SHORT, case.steps, cores=all_cores(), threads=threads)
        list(pool.map(single, range(case.tasks)))
    return time.monotonic() - began


def ours(case: Case, arm: Arm) -> float:
    """Seconds from ``marlaas submit`` to the end of the last task. Raises ``RuntimeError`` if one fails."""
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-", ignore_cleanup_errors=True) as name:
        home = Home(Path(name) / "home")
        home.plugins.mkdir(parents=True)
        home.config.write_text(settings(SHORT, arm), encoding="utf-8")
        files = [_prepare(home, Path(name), number, case.steps, arm) for number in range(case.tasks)]
        began = time.time()
        try:
            command(home, all_cores(), "submit", *map(str, files))
            return _last_end(home) - began
        finally:
            with suppress(RuntimeError):
                command(home, all_cores(), "engine", "stop")


def _prepare(home: Home, folder: Path, number: int, steps: int, arm: Arm) -> Path:
    """The environment folder and the task file of one task, as its user would have written them."""
    plugin = home.plugins / f"sums_{number}"
    shutil.copytree(SHORT.plugin, plugin, ignore=shutil.ignore_patterns("__pycache__"))
    fixed.write_rows(SHORT, steps, number, plugin)
    workload = replace(SHORT, environment=f"{plugin.name}/{SHORT.environment}")
    path = folder / f"task_{number}.toml"
    path.write_text(task_file(workload, steps, number, arm.staleness, f"sums {number}"), encoding="utf-8")
    return path


def _last_end(home: Home) -> float:
    deadline = time.monotonic() + PATIENCE
    with Reader(home.database) as reader:
        while time.monotonic() < deadline:
            rows = reader.tasks()
            for row in rows:
                if row.state in ("failed", "paused", "cancelled"):
                    raise RuntimeError(f"The task {row.name!r} is {row.state}: {row.reason}")
            if all(row.state == "done" for row in rows):
                return max(row.finished or 0.0 for row in rows)
            time.sleep(POLL)
    raise RuntimeError(f"The tasks did not finish within {PATIENCE:.0f} s.")


def rows(found: Mapping[Case, Waits]) -> tuple[Row, ...]:
    """Every arm of ours next to both of theirs."""
    return tuple(
        Row(
            f"{case.tasks} tasks of {case.steps} steps, from nothing to all done, {name}",
            "s",
            Series(tuple(waits[name])),
            Series(tuple(waits[other])),
            other,
            goal=GOAL,
        )
        for case, waits in found.items()
        for name in OURS
        for other in (IN_SEQUENCE, IN_PARALLEL)
    )


def method() -> str:
    """What ran, with which settings."""
    return (
        f"{TASKS} tasks of {SHORT.name}, {SHORT.groups} prompts × {SHORT.group_size} completions a step; the shipped"
        f" base, {tables.settings()}. Number *i* of both sides trains on the same prompts and pays with the"
        " same function. Wall time, start-up included. marlaas: eight task files, each with an environment folder of"
        " its own; from the start of `marlaas submit` on a home without an engine to the end of the last task, with"
        f" everything that it keeps, and one held-out prompt before and after; staleness {Arm().staleness}. TRL: eight"
        f" processes, in sequence with {len(all_cores())} threads each, and all at once with one thread each; no"
        " checkpoints, logging or evaluation. The system's file cache is warm for both."
    )
