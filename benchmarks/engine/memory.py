"""What the demo's processes take of the memory while it trains: engine, sampler, trainer, and what the two share.

Counted is a process's proportional share (PSS): a page that several processes map counts in parts, so that the sum is
what the machine has less.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import sleep, time

import psutil

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader

from ..report.figures import Row, Section, Series, Unmeasurable
from .startup import MARLAAS, PATIENCE, POLL

STEPS = 30
"""Steps that the demo's tasks have made together before the first look: by then each batch has had a large group."""
LOOKS = 5
"""Looks at a demo, two seconds apart; the largest counts."""
GOALS = {"engine": "under 60 MB", "sampler": "under 350 MB", "trainer": "under 300 MB", "template": ""}
WORDS = {
    "engine": ("marlaas.engine.daemon.main",),
    "sampler": ("marlaas.engine.workers.host", "rollout"),
    "trainer": ("marlaas.engine.workers.host", "training"),
    "template": ("marlaas.engine.workers.template",),
}
"""What the command line of each process has."""


def measure(quick: bool) -> Section:
    """Run demos one after the other; about a minute each."""
    if sys.platform != "linux":
        raise Unmeasurable("only Linux says what a process shares with others.")
    demos = [run_demo(5 if quick else STEPS) for _ in range(1 if quick else 5)]
    rows = [
        Row(f"`marlaas demo`: {what}", "MB", Series(tuple(demo.get(what, 0.0) for demo in demos)), goal=goal)
        for what, goal in GOALS.items()
    ]
    together = tuple(sum(demo.values()) for demo in demos)
    rows.append(Row("`marlaas demo`: together", "MB", Series(together)))
    return Section("memory", "Memory", METHOD, tuple(rows), timed=False)


METHOD = f"""Each demo in a fresh home, until its tasks have made {STEPS} steps; then the largest of {LOOKS} looks.
A page that several processes map counts in parts (PSS). The template is the process that has imported PyTorch and
forks sampler and trainer: each of the three counts a third of what they share."""


def run_demo(steps: int) -> dict[str, float]:
    """Megabytes of each process of a demo whose tasks have made so many steps together."""
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        home = Home(Path(folder) / "home")
        command, own = [*MARLAAS, "demo", "--json"], os.environ | {"MARLAAS_HOME": str(home.root)}
        quiet = subprocess.DEVNULL
        demo = subprocess.Popen(command, env=own, stdout=quiet, stderr=quiet, start_new_session=True)
        try:
            _wait(home, steps, demo)
            looks = []
            for _ in range(LOOKS):
                sleep(2)
                looks.append(taken(home))
            return {what: max(look.get(what, 0.0) for look in looks) for what in WORDS if what in looks[0]}
        finally:
            demo.send_signal(signal.SIGINT)
            demo.wait()


def _wait(home: Home, steps: int, demo: subprocess.Popen[bytes]) -> None:
    """Until the tasks are that far. Raises ``RuntimeError`` where they never are."""
    began = time()
    while time() - began < PATIENCE and demo.poll() is None:
        sleep(POLL)
        if home.database.exists():
            with suppress(MarlaasError), Reader(home.database) as reader:
                if sum(task.step for task in reader.tasks()) >= steps:
                    return
    raise RuntimeError("The demo made too few steps.")


def taken(home: Home) -> dict[str, float]:
    """Megabytes of the engine of a home and of its workers, by what they are."""
    with Reader(home.database) as reader:
        row = reader.engine()
    assert row is not None
    engine = psutil.Process(row.pid)
    found: dict[str, float] = {}
    for process in (engine, *engine.children(recursive=True)):
        with suppress(psutil.NoSuchProcess):
            words = process.cmdline()
            for what, wanted in WORDS.items():
                if {*wanted} <= {*words}:
                    found[what] = found.get(what, 0.0) + process.memory_full_info().pss / 1e6
    return found
