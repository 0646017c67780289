"""Our side: the real program, as its users run it. A workload and a number of cores flow in, a ``Run`` flows out.

A fresh home gets the plugin ``sums`` and one task file; ``marlaas submit`` starts the engine on the given cores; the
figures are what the engine committed to its store, and the processor time that the kernel counted for each process.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean

from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import StepRow

from ..machinery.cores import pinned
from ..machinery.meter import Meter
from . import workload as fixed
from .runs import Arm, Run
from .workload import Workload

PATIENCE = 600.0
POLL = 0.2
"""Seconds between looks at the store: seldom enough not to matter."""
TASK = """\
tenant = "bench"
name = "{name}"
environment = "{environment}"
steps = {steps}

{configuration}
[policy]
rank = {rank}
alpha = {alpha}

[train]
learning_rate = {learning_rate}
clip_norm = {clip_norm}
groups_per_step = {groups}
group_size = {group_size}
max_staleness = {staleness}
seed = {seed}

[sampling]
temperature = {temperature}
max_tokens = {tokens}
max_episode_tokens = {tokens}

[eval]
every = 0
prompts = 1
"""


def run(workload: Workload, steps: int, seed: int, cores: Sequence[int], arm: Arm, whole: bool = False) -> Run:
    """Train one task in its own home on those cores. Raises ``RuntimeError`` if it does not finish.

    Without ``whole`` it makes a few steps more than are measured.
    """
    extra = 0 if whole else arm.staleness  # the last steps live on stock and sample nothing: they are not measured
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as name:
        home = Home(Path(name) / "home")
        plugin = home.plugins / workload.environment
        shutil.copytree(workload.plugin, plugin, ignore=shutil.ignore_patterns("__pycache__"))
        home.config.write_text(settings(workload, arm), encoding="utf-8")
        fixed.write_rows(workload, steps + extra, seed, plugin)
        description = Path(name) / "task.toml"
        description.write_text(task_file(workload, steps + extra, seed, arm.staleness), encoding="utf-8")
        started = time.time()
        try:
            command(home, cores, "submit", str(description))
            load, others = _follow(home, cores)
            with Reader(home.database) as reader:
                committed, task = reader.steps(1), reader.task(1)
        finally:
            with suppress(RuntimeError):
                command(home, cores, "engine", "stop")
    begun = task.started or 0.0 if task else 0.0
    return _run(workload, (started, begun), committed, load, others)


def _run(
    workload: Workload, began: tuple[float, float], committed: Sequence[StepRow], load: dict[str, float], others: float
) -> Run:
    """``began``: when the command was given, and when the task."""
    return Run(
        began[0],
        tuple(step.created for step in committed),
        tuple(step.metrics["reward"] for step in committed),
        tuple(step.metrics["tokens"] / workload.episodes for step in committed),
        load,
        others,
        fmean(step.metrics["training_seconds"] for step in committed[len(committed) // 4 :]),
        begun=began[1],
    )


def settings(workload: Workload, arm: Arm) -> str:
    """``marlaas.toml``."""
    return (
        f"base = {json.dumps(workload.base)}\n[rollout]\n"
        f'sampler = "{arm.sampler}"\nweights = "{arm.weights}"\ncontext = 512\n'
    )


def task_file(workload: Workload, steps: int, seed: int, staleness: int, name: str = "bench") -> str:
    """What ``marlaas submit`` gets."""
    environment = workload.environment
    return TASK.format(
        name=name,
        steps=steps,
        seed=seed,
        staleness=staleness,
        environment=environment if "/" in environment else f"{environment}/{environment}",
        configuration="[environment_config]\ngraded = true\n" if workload.graded else "",
        tokens=workload.max_tokens,
        groups=workload.groups,
        group_size=workload.group_size,
        rank=fixed.RANK,
        alpha=fixed.ALPHA,
        learning_rate=fixed.LEARNING_RATE,
        clip_norm=fixed.CLIP_NORM,
        temperature=fixed.TEMPERATURE,
    )


def command(home: Home, cores: Sequence[int], *words: str) -> None:
    """Run one command line of marlaas on those cores, and with it any engine that it starts.

    Raises ``RuntimeError`` with what it said if it fails.
    """
    line = [sys.executable, "-P", "-m", "marlaas.app.cli.main", "--home", str(home.root), *words]
    with pinned(cores):  # an engine that it starts inherits them
        done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError(f"marlaas {words[0]}: {done.stderr.strip()}")


def _follow(home: Home, cores: Sequence[int]) -> tuple[dict[str, float], float]:
    """Wait for the task's end; the cores that each stage used after the first quarter of steps, and those of others."""
    meter: Meter | None = None
    began = ended = 0.0
    deadline = time.monotonic() + PATIENCE
    with Reader(home.database) as reader:
        while time.monotonic() < deadline:
            row = reader.task(1)
            if row is None or row.state in ("failed", "paused", "cancelled"):
                raise RuntimeError(f"The task did not finish: {row.state if row else 'lost'}, {row and row.reason}")
            if row.state == "done":
                usage = meter.usage(ended - began) if meter and ended > began else None
                return ({stage: usage.busy(stage) for stage in usage.spent}, usage.others) if usage else ({}, 0.0)
            if row.started and row.steps // 4 <= row.step < row.steps and any(each.pid for each in reader.workers()):
                if meter is None:
                    meter, began = Meter(reader, cores), time.monotonic()
                meter.look(reader)
                ended = time.monotonic()
            time.sleep(POLL)
    raise RuntimeError(f"The task did not finish within {PATIENCE:.0f} s.")
