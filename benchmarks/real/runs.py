"""Runs of both sides on the real model. Each ends as a ``Record`` in a file, so that a second call continues.

Ours are whole programs in a home under ``.bench``: a call that has no time left stops the engine, and the next one
starts it again. A comparison's runs start from nothing, because their time counts.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from marlaas.engine.daemon.control import alive, create_database
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import TaskRow
from marlaas.plugins.data import row_at

from .. import PLUGINS, ROOT
from ..beside_trl import trl_side, workload as fixed
from ..beside_trl.marlaas_side import command
from ..beside_trl.random_bases import KEEPING
from ..beside_trl.trl_venv import ensure_trl
from ..machinery.cores import all_cores
from ..machinery.meter import Meter
from ..plugins.real import grading
from ..report.machine import cpu_model
from .base import smollm2

PLUGIN = PLUGINS / "real"
HOMES = ROOT / ".bench" / "real"
ENVIRONMENTS = ("number", "facts", "capital", "format", "tool")
OURS, THEIRS, ALONE, AT_ONCE = "marlaas", "trl", "alone", "at_once"
TOKENS = {"number": 32, "facts": 48}
"""``max_tokens`` in the comparison with TRL, on both sides."""
LEARNING_RATE = 2e-4
SEEDS, STEPS = 3, 12
"""Of the comparison."""
LONGEST, TOGETHER = 60, 30
"""Most steps with default settings: of a task by itself, and of five at once, which take as long in 30 steps."""
TARGET = 0.8
"""Held-out score at which a task with default settings ends."""
PROMPTS = 64
PASS = 16
"""Episodes of one pass of TRL, which generates all 64 at once: a pass of 64 would keep some 10 GB for the gradient."""
POLL, HOUR = 1.0, 3600.0


@dataclass(frozen=True)
class Record:
    """One task's training."""

    environment: str
    arm: str
    seed: int
    rewards: tuple[float, ...]
    """Mean reward of each step's episodes."""
    lengths: tuple[float, ...]
    """Mean number of sampled tokens of each step's episodes."""
    held_out: tuple[tuple[int, float, float], ...]
    """Steps made, mean reward on the held-out prompts and its standard error."""
    step_seconds: float
    """From the start of training to the end of the last step, divided by the steps."""
    seconds: float
    """From the first process to the end, with start-up and evaluations; of a run in several calls, their sum."""
    others: float
    """Cores that other programs used meanwhile."""
    date: str
    cpu: str


def save(record: Record, folder: Path) -> None:
    """Write it where ``load`` finds it."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{record.arm}_{record.environment}_{record.seed}.json"
    path.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")


def load(folder: Path, arm: str, environment: str) -> list[Record]:
    """What is there, in the order of seeds."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in folder.glob(f"{arm}_{environment}_*.json")]
    tuples = [{key: _tuples(value) for key, value in one.items()} for one in found]
    return sorted((Record(**one) for one in tuples), key=lambda record: record.seed)


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def theirs(environment: str, seed: int, steps: int, home: Path, deadline: float) -> Record:
    """One run of TRL on the rows of our task of the same seed, in the same order."""
    shutil.rmtree(home, ignore_errors=True)
    home.mkdir(parents=True)
    python, base, train = ensure_trl(), smollm2(), grading.rows(environment, "train")
    order = [train[row_at("train", seed, n, len(train))] for n in range(steps * 8)]
    held_out = grading.rows(environment, "eval")[:PROMPTS]
    for name, rows in (("train", order), ("eval", held_out)):
        (home / f"{name}.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n", encoding="utf-8")
    settings = {
        "folder": str(home),
        "rows": str(home / "train.jsonl"),
        "held_out": str(home / "eval.jsonl"),
        "before": True,
        "plugin": str(PLUGIN),
        "graded": environment,
        "base": str(base),
        "steps": steps,
        "seed": seed,
        "threads": len(all_cores()),
        "max_tokens": TOKENS[environment],
        "groups": 8,
        "group_size": 8,
        "at_once": PASS,
        "temperature": fixed.TEMPERATURE,
        "learning_rate": LEARNING_RATE,
        "betas": fixed.BETAS,
        "clip_norm": fixed.CLIP_NORM,
        "rank": fixed.RANK,
        "alpha": fixed.ALPHA,
    }
    began = time.time()
    run = trl_side.launch(python, settings, home, all_cores(), KEEPING, min(HOUR, deadline - time.monotonic()))
    took = time.time() - began
    scores = tuple((at, fmean(got), stdev(got) / len(got) ** 0.5) for at, got in ((0, run.before), (steps, run.after)))
    shutil.rmtree(home)
    measured = (run.step_seconds(0, steps), took, run.others)
    return Record(environment, THEIRS, seed, tuple(run.rewards), tuple(run.lengths), scores, *measured, *_here())


def compared(environment: str, seed: int, steps: int) -> str:
    """Our task file of the comparison."""
    tokens = TOKENS[environment]
    return (
        f'tenant = "bench"\nname = "{environment}"\nenvironment = "real/{environment}"\nsteps = {steps}\n'
        f"[policy]\nrank = {fixed.RANK}\nalpha = {fixed.ALPHA}\n"
        f"[train]\nlearning_rate = {LEARNING_RATE}\nclip_norm = {fixed.CLIP_NORM}\nseed = {seed}\n"
        f"groups_per_step = 8\ngroup_size = 8\n"
        f"[sampling]\ntemperature = {fixed.TEMPERATURE}\nmax_tokens = {tokens}\nmax_episode_tokens = {tokens}\n"
        f"[eval]\nevery = 0\nprompts = {PROMPTS}\n"
    )


def default(environment: str, steps: int) -> str:
    """Our task file with default settings, which ends early if it has learned enough."""
    head = f'tenant = "bench"\nname = "{environment}"\nenvironment = "real/{environment}"\nsteps = {steps}\n'
    return f"{head}[eval]\ntarget = {TARGET}\n"


def ours(
    files: Mapping[str, str], arm: str, seed: int, root: Path, deadline: float, settings: str = ""
) -> list[Record]:
    """Train these tasks (environment and task file) at the same time in the home ``root`` until all are done.

    Returns nothing if ``deadline``, by the monotonic clock, comes first: the next call continues.
    Raises ``RuntimeError`` if a task fails or pauses. ``settings``: more lines of ``marlaas.toml``.
    """
    home, began, spent = Home(root), time.time(), root / "spent.json"
    if not spent.exists():
        shutil.rmtree(root, ignore_errors=True)
        create_database(home)
        home.config.write_text(f"base = {json.dumps(str(smollm2()))}\n{settings}", encoding="utf-8")
        shutil.copytree(PLUGIN, home.plugins / "real", ignore=shutil.ignore_patterns("__pycache__"))
        for name, text in files.items():
            (root / f"{name}.toml").write_text(text, encoding="utf-8")
        command(home, all_cores(), "submit", *(str(root / f"{name}.toml") for name in files))
        spent.write_text("[0.0, 0.0]", encoding="utf-8")
    before, most = json.loads(spent.read_text(encoding="utf-8"))
    command(home, all_cores(), "engine", "start")
    try:
        with Reader(home.database) as reader:
            others = _follow(home, reader, deadline)
            spent.write_text(json.dumps([before + time.time() - began, max(most, others)]), encoding="utf-8")
            if any(row.state != "done" for row in reader.tasks()):
                return []
            found = [_record(reader, row, arm, seed, spent) for row in reader.tasks()]
    finally:
        with suppress(RuntimeError):
            command(home, all_cores(), "engine", "stop")
    shutil.rmtree(root)
    return found


def _follow(home: Home, reader: Reader, deadline: float) -> float:
    """Wait until all tasks are done or time is over; cores that other programs used meanwhile.

    Raises ``RuntimeError`` if the engine ended or a task cannot go on.
    """
    meter, began, made = Meter(reader, all_cores()), time.monotonic(), -1
    while time.monotonic() < deadline:
        meter.look(reader)
        rows = reader.tasks()
        if made != (made := sum(row.step for row in rows)):
            steps = ", ".join(f"{row.name} {row.step} ({row.reward or 0:.2f})" for row in rows)
            print(f"    {time.monotonic() - began:.0f} s: {steps}", flush=True)
        for row in rows:
            if row.state in ("failed", "paused", "cancelled"):
                raise RuntimeError(f"The task {row.name!r} is {row.state}: {row.reason}")
        if all(row.state == "done" for row in rows):
            break
        if not alive(home):
            raise RuntimeError(f"The engine ended; {home.logs} may say why. The same command continues.")
        time.sleep(POLL)
    return meter.usage(time.monotonic() - began).others


def _record(reader: Reader, row: TaskRow, arm: str, seed: int, spent: Path) -> Record:
    steps, episodes = reader.steps(row.id), 64
    seconds, others = json.loads(spent.read_text(encoding="utf-8"))
    return Record(
        row.name,
        arm,
        seed,
        tuple(step.metrics["reward"] for step in steps),
        tuple(step.metrics["tokens"] / episodes for step in steps),
        tuple((one.step, one.score or 0.0, one.stderr) for one in reader.evals(row.id)),
        (steps[-1].created - (row.started or 0.0)) / len(steps),
        seconds,
        others,
        *_here(),
    )


def _here() -> tuple[str, str]:
    return datetime.now(UTC).strftime("%Y-%m-%d %H:%M"), cpu_model()


def compare(environment: str, folder: Path, deadline: float, size: tuple[int, int] = (SEEDS, STEPS)) -> bool:
    """Both arms in turn for each seed, as far as they are not there; whether all are.

    A run begins only if one of its arm fits into the time, by the longest so far.
    """
    seeds, steps = size
    for seed in range(seeds):
        for arm in (THEIRS, OURS):
            there = load(folder, arm, environment)
            if any(record.seed == seed for record in there):
                continue
            if time.monotonic() + max((record.seconds for record in there), default=0.0) > deadline:
                return False
            home = HOMES / f"{arm}_{environment}_{seed}"
            print(f"  {arm}, {environment}, seed {seed}", flush=True)
            if arm == THEIRS:
                try:
                    save(theirs(environment, seed, steps, home, deadline), folder)
                except subprocess.TimeoutExpired:
                    return False
                continue
            shutil.rmtree(home, ignore_errors=True)
            for record in ours({environment: compared(environment, seed, steps)}, OURS, seed, home, deadline):
                save(record, folder)
    return all(len(load(folder, arm, environment)) >= seeds for arm in (THEIRS, OURS))


def train(
    environments: Sequence[str], arm: str, folder: Path, deadline: float, steps: int = LONGEST, settings: str = ""
) -> bool:
    """These tasks with default settings in one engine, if they are not there; whether they are."""
    if not all(load(folder, arm, name) for name in environments):
        files = {name: default(name, steps) for name in environments}
        for record in ours(files, arm, 0, HOMES / "_".join((arm, *environments)), deadline, settings):
            save(record, folder)
    return all(load(folder, arm, name) for name in environments)
