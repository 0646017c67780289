"""What the engine itself costs, and how long it lets work lie: processor time an episode, event to action, messages.

The real engine with real workers trains one task of short answers. Processor time is read from the kernel while nothing
but the product runs; waiting times come from a second run under a stop-watch (``probe``).
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from time import monotonic, perf_counter, sleep

import numpy as np
import psutil

from marlaas.engine.daemon.control import create_database
from marlaas.engine.home.paths import Home
from marlaas.engine.spec.task import EvalSpec, SamplingSpec, TaskSpec, TrainSpec
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.submissions import submit
from marlaas.engine.submission.taskfile import submission
from marlaas.engine.workers.handle import LocalLauncher

from .. import ROOT
from ..report.figures import Row, Section, Series

WARM_UP = 5
"""Steps before anything is counted."""
PATIENCE = 120.0
"""Seconds that a step may take before the run counts as stuck."""
POLL = 0.02
TRAIN = TrainSpec(groups_per_step=8, group_size=8, max_staleness=1)
EPISODES = TRAIN.groups_per_step * TRAIN.group_size
CALLS, CROWD = 500, 64
ECHO = "benchmarks.engine.costs:Echo"
ARRAY_MB = 8


def measure(quick: bool) -> Section:
    """Run the task twice, then the messages alone; about a minute, less when quick."""
    os.environ["PYTHONPATH"] = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])  # for the processes below
    windows, steps = (2, 10) if quick else (6, 25)
    costs = processor_time(windows, steps)
    waits = waiting_times(steps * (1 if quick else 4))
    together = [wait for kind in waits.values() for wait in kind]
    rows = [
        Row("engine, processor time an episode", "ms", Series(costs), goal="at most 0.3 ms"),
        Row("event to action, median", "ms", Series((percentile(together, 50),))),
        Row("event to action, 95th percentile", "ms", Series((percentile(together, 95),)), goal="under 10 ms"),
        *asyncio.run(messages(2 if quick else 5)),
    ]
    return Section("engine", "The engine and its messages", METHOD, tuple(rows), remarks(waits))


METHOD = f"""One task of the bundled environment `arithmetic` (prompts of about 10 tokens, answers of about 4), \
{EPISODES} episodes a step, staleness {TRAIN.max_staleness}, no evaluation; all processes as in production.
Processor time is that of the engine's process alone (user and system, all threads), divided by the episodes of the
steps that it committed meanwhile, after {WARM_UP} steps of warm-up. Event to action is the time from the arrival of a
frame (an ask, a sampled turn, the last end of a group's episodes, an optimizer step, a published version; for a group
that found the trainer busy, the trainer's answer) to the moment when the frame that it makes possible has been written.
A message is a call to a worker that returns its argument: one at a time, {CROWD} at once, and with an array of
{ARRAY_MB} MB."""

BOUND = """An episode of one turn must move two messages from its environment and two to it, two to its sampler and one
back, and a row of its own in the store; a group has eight times that, and a transaction. Pickling, JSON, the socket and
sqlite take about a fifth of the engine's time for it. The rest is Python, spread over some 500 calls of ours and 15
of asyncio's callbacks (`benchmarks/guard/counts.txt`), none of which takes 4 %: further gains need fewer layers between
a message and what it makes possible, not faster ones."""


def processor_time(windows: int, steps: int) -> tuple[float, ...]:
    """Milliseconds of the engine's process for each episode, in windows of so many steps."""
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        home = queued(Path(folder), WARM_UP + windows * steps + 2)
        with engine(home, "marlaas.engine.daemon.main", str(home.root)) as process:
            marks = []
            for window in range(windows + 1):
                step = wait_for_step(home, process, WARM_UP + window * steps)
                marks.append((step, seconds(process.pid)))
    return tuple(
        1000 * (after - before) / ((last - first) * EPISODES) for (first, before), (last, after) in pairwise(marks)
    )


def waiting_times(steps: int) -> dict[str, list[float]]:
    """Milliseconds from each event to its action, by kind."""
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        home, out = queued(Path(folder), steps + 2), Path(folder) / "waits.json"
        with engine(home, "benchmarks.engine.probe", str(home.root), str(out)) as process:
            wait_for_step(home, process, steps)
        waits: dict[str, list[float]] = json.loads(out.read_text("utf-8"))
    return waits


class Echo:
    """A worker that does nothing, so that a call to it costs what the messages cost."""

    async def echo(self, value: object) -> object:
        """Return ``value``."""
        return value


async def messages(repetitions: int) -> list[Row]:
    """Round trips of calls to a worker that does nothing."""
    array = np.zeros(ARRAY_MB << 18, np.float32)
    one, crowd, large = [], [], []
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        worker = await LocalLauncher().start("echo", ECHO, {}, log_path=Path(folder) / "echo.log")
        try:
            for _ in range(repetitions):
                began = perf_counter()
                for number in range(CALLS):
                    await worker.call("echo", number)
                one.append(1e6 * (perf_counter() - began) / CALLS)
                began = perf_counter()
                for _ in range(CALLS // CROWD):
                    await asyncio.gather(*(worker.call("echo", number) for number in range(CROWD)))
                crowd.append(1e6 * (perf_counter() - began) / (CALLS // CROWD * CROWD))
                began = perf_counter()
                await worker.call("echo", array)
                large.append(2 * ARRAY_MB / (perf_counter() - began))
        finally:
            await worker.stop()
    return [
        Row("message and answer, one at a time", "µs", Series(tuple(one))),
        Row(f"message and answer, {CROWD} at once", "µs", Series(tuple(crowd))),
        Row(f"arrays of {ARRAY_MB} MB, there and back", "MB/s", Series(tuple(large)), higher_is_better=True),
    ]


def queued(folder: Path, steps: int) -> Home:
    """A home with one short task in its queue."""
    home = Home(folder / "home")
    create_database(home)
    short = SamplingSpec(max_tokens=8)
    spec = TaskSpec("bench", "sums", "arithmetic", steps, train=TRAIN, sampling=short, eval=EvalSpec(every=0))
    submit(home.database, [submission(spec)])
    return home


@contextmanager
def engine(home: Home, module: str, *arguments: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that serves a home; told to stop, and waited for, at the end."""
    with open(home.logs / "engine.log", "ab") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", module, *arguments],
            stderr=log,
            start_new_session=True,
        )
    try:
        yield process
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def wait_for_step(home: Home, process: subprocess.Popen[bytes], wanted: int) -> int:
    """Wait until so many steps are committed and return how many are. Raises ``RuntimeError`` if they never will be."""
    with Reader(home.database) as reader:
        last, seen = monotonic(), -1
        while True:
            (task,) = reader.tasks()
            if task.step >= wanted:
                return task.step
            if task.step != seen:
                last, seen = monotonic(), task.step
            if process.poll() is not None or not task.unfinished or monotonic() - last > PATIENCE:
                raise RuntimeError(f"The run stopped at step {task.step}: {task.state} {task.reason}")
            sleep(POLL)


def seconds(process: int) -> float:
    """Processor time of one process, without its children."""
    times = psutil.Process(process).cpu_times()
    return float(times.user + times.system)


def percentile(values: list[float], rank: int) -> float:
    """The value that ``rank`` percent do not exceed."""
    return quantiles(values, n=100, method="inclusive")[rank - 1] if len(values) > 1 else values[0]


def remarks(waits: dict[str, list[float]]) -> str:
    """The waiting times by kind of event."""
    lines = ["Event to action by kind, ms:", "", "| event → action | median | 95 % | number |", "|---|---|---|---|"]
    for kind, values in waits.items():
        lines.append(f"| {kind} | {percentile(values, 50):.2f} | {percentile(values, 95):.2f} | {len(values)} |")
    return "\n".join([*lines, "", BOUND])
