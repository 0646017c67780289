"""Many tasks through the real program, in their own home: task descriptions flow in, a ``FleetRun`` flows out.

The engine is started first and does a small task, so that what is measured begins warm; it is stopped at the end
whatever happens. Times are those that it committed to its store; processor time and memory are the kernel's, read twice
a second from every process that is ours. Knows nothing of what is compared with what.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import psutil

from marlaas.engine.daemon.control import alive, create_database
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.submission.taskfile import submission
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EvalRow, StepRow, TaskRow
from marlaas.engine.store.submissions import submit

from .. import PLUGINS, ROOT
from .cores import all_cores
from .meter import Meter, Usage

ENGINE = "marlaas.engine.daemon.main"
WIDE_ENGINE = "benchmarks.machinery.wide_engine"
"""The same, with all cores for each worker."""
POLL = 0.5
"""Seconds between looks: what it takes to look is taken from the two cores."""
PATIENCE = 180.0
"""Seconds without any step after which a run counts as stuck."""
NOTHING: Mapping[str, str] = MappingProxyType({})
STARTING = 600.0
"""Seconds that an engine gets to start: it compares a new base of 0.5 B with transformers, for minutes."""
GRACE = 60.0
"""Seconds that an engine gets to stop before it is killed."""
WARM_UP = TaskSpec(
    "bench",
    "warm-up",
    "arithmetic",
    steps=3,
    train=TrainSpec(groups_per_step=2, group_size=4, learning_rate=5e-4),
    sampling=SamplingSpec(max_tokens=8, max_episode_tokens=256),
    eval=EvalSpec(every=0, prompts=1),
)


@dataclass(frozen=True)
class TaskRun:
    """One task that was done."""

    row: TaskRow
    steps: tuple[StepRow, ...]
    evals: tuple[EvalRow, ...]

    @property
    def finished(self) -> float:
        """Seconds since the epoch."""
        return self.row.finished or 0.0


@dataclass(frozen=True)
class FleetRun:
    """Tasks that were submitted together, all of them done."""

    submitted: float
    """Seconds since the epoch."""
    tasks: tuple[TaskRun, ...]
    """In the order in which they were submitted."""
    usage: Usage
    """What our processes took between submission and end."""

    @property
    def makespan(self) -> float:
        """Seconds from the submission to the end of the last task."""
        return max(task.finished for task in self.tasks) - self.submitted

    def metrics(self, name: str) -> list[float]:
        """The values of a metric in all steps of all tasks."""
        return [step.metrics.get(name, 0.0) for task in self.tasks for step in task.steps]

    def of_tenant(self, tenant: str) -> tuple[TaskRun, ...]:
        """The tasks of a tenant, in order."""
        return tuple(task for task in self.tasks if task.row.tenant == tenant)

    def turns(self) -> dict[str, float]:
        """Seconds that each task took where one ran after another: from the end of the one before, by name."""
        order = sorted(self.tasks, key=lambda task: task.finished)
        ends = [self.submitted, *(task.finished for task in order)]
        return {task.row.name: task.finished - before for before, task in zip(ends, order, strict=False)}


class Fleet:
    """A home with a running engine."""

    def __init__(self, home: Home, process: subprocess.Popen[bytes]) -> None:
        self.home = home
        self._process = process

    def spent(self) -> float:
        """Seconds of a processor that the engine and all that it has started have used so far; what has ended among
        that is left out."""
        engine = psutil.Process(self._process.pid)
        total = 0.0
        for process in (engine, *engine.children(recursive=True)):
            with suppress(psutil.NoSuchProcess):
                times = process.cpu_times()
                total += times.user + times.system
        return total

    def run(self, specs: Sequence[TaskSpec]) -> FleetRun:
        """Submit tasks together and wait until all are done. Raises ``RuntimeError`` with a sentence if one is not."""
        with Reader(self.home.database) as reader:
            meter = Meter(reader, all_cores())
            submitted = time.time()
            numbers = submit(self.home.database, [submission(spec) for spec in specs])
            rows = self._follow(reader, numbers, meter)
            usage = meter.usage(max(row.finished or 0.0 for row in rows) - submitted)
            tasks = (TaskRun(row, tuple(reader.steps(row.id)), tuple(reader.evals(row.id))) for row in rows)
            return FleetRun(submitted, tuple(tasks), usage)

    def _follow(self, reader: Reader, numbers: Iterable[int], meter: Meter) -> list[TaskRow]:
        wanted, seen, moved = set(numbers), -1, time.monotonic()
        while True:
            rows = [row for row in reader.tasks() if row.id in wanted]
            meter.look(reader)
            for row in rows:
                blocked = row.state == "blocked" and time.monotonic() - moved > GRACE / 4
                if row.state in ("failed", "cancelled", "paused") or blocked:
                    raise RuntimeError(f"The task {row.name!r} of {row.tenant} is {row.state}: {row.reason}")
            if all(row.state == "done" for row in rows):
                return rows
            self._check()
            progress = sum(row.step + (row.state == "done") for row in rows)
            if progress != seen:
                seen, moved = progress, time.monotonic()
            if time.monotonic() - moved > PATIENCE:
                raise RuntimeError(f"No task made a step within {PATIENCE:.0f} s; {seen} steps are done.")
            time.sleep(POLL)

    def wait(self) -> None:
        """Wait until the engine serves. Raises ``RuntimeError`` if it does not."""
        deadline = time.monotonic() + STARTING
        while not alive(self.home):
            self._check()
            if time.monotonic() > deadline:
                raise RuntimeError(f"The engine does not serve after {STARTING:.0f} s.")
            time.sleep(0.1)

    def _check(self) -> None:
        if self._process.poll() is not None:
            words = (self.home.logs / "engine.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
            raise RuntimeError(f"The engine ended: {words[-1] if words else 'it left no word.'}")


def _nothing(home: Home) -> None:
    """Needs nothing else in the home."""


@contextmanager
def fleet(
    plugins: Sequence[str] = (),
    settings: str = "",
    module: str = ENGINE,
    prepare: Callable[[Home], None] = _nothing,
    environ: Mapping[str, str] = NOTHING,
    warm: bool = True,
) -> Iterator[Fleet]:
    """A fresh home with these folders of ``benchmarks/plugins`` and this ``marlaas.toml``, and its engine.

    ``warm``: whether it does a small task first.

    ``prepare`` puts further files into the home before the engine starts. ``environ``: further environment variables of
    the engine.
    """
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-", ignore_cleanup_errors=True) as folder:
        home = Home(Path(folder) / "home")
        create_database(home)
        home.config.write_text(settings, encoding="utf-8")
        for name in plugins:
            shutil.copytree(PLUGINS / name, home.plugins / name, ignore=shutil.ignore_patterns("__pycache__"))
        prepare(home)
        with _engine(home, module, environ) as process:
            found = Fleet(home, process)
            found.wait()
            if warm:
                found.run([WARM_UP])
            yield found


@contextmanager
def _engine(home: Home, module: str, environ: Mapping[str, str]) -> Iterator[subprocess.Popen[bytes]]:
    path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    with open(home.logs / "engine.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, str(home.root)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": path, **environ},
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(GRACE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
