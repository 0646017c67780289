"""The terminal application in a real pseudo-terminal: how soon it is there, how soon it answers, what it takes.

Beside it, where there is something to compare with, a Textual program that shows one word. A process pretends to be the
engine: it writes what engines write, as often as is asked, and takes nothing from the cores but that.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import quantiles

from marlaas.engine.home.paths import Home

from ..engine.startup import MARLAAS, run_help
from ..report.figures import Row, Section, Series
from . import empty
from .home import filled, name
from .session import Session

EMPTY = (sys.executable, "-P", str(Path(__file__).with_name("empty.py")))
ENGINE = (sys.executable, "-P", str(Path(__file__).with_name("home.py")))
PAINTED = name(1)
"""Stands on the first screen of a filled home."""
WHOLE = "palette"
"""Stands there once the whole view is drawn: the last of its keys."""
CHANGES = 0.02
"""Seconds between two changes of the database while keys are pressed."""
STEPS = 1 / 16
"""Seconds between two steps of 32 tasks while nobody presses anything: each makes one in two seconds."""
LOAD = 5
"""Programs that compute all the time beside a first paint."""
TRAJECTORIES = 100_000
VIEWS = {
    "its own view": ("\r", f"group {TRAJECTORIES // 8 - 1}"),
    "the view of its rollouts": ("t", f"{TRAJECTORIES // 64 - 1} "),
}
"""Views of a task: the key that opens each, and what then stands there."""


@dataclass(frozen=True)
class Idle:
    """What the program takes while nobody touches it."""

    share: float
    """Percent of one core."""
    kilobytes: float
    """To the terminal, a second."""
    megabytes: float


@dataclass(frozen=True)
class Opened:
    """A task with very many trajectories."""

    seconds: list[float]
    megabytes: float


def measure(quick: bool) -> Section:
    """About four minutes."""
    rounds, presses, seconds = (3, 60, 10.0) if quick else (15, 300, 60.0)
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        few, many = filled(Path(folder) / "few", 32), filled(Path(folder) / "many", 64)
        large = filled(Path(folder) / "large", 1, steps=TRAJECTORIES // 64, trajectories=TRAJECTORIES)
        run_help(), first_paint(few), empty_paint(), empty_paint("furnished")  # the first of each warms the file cache
        paints = [(first_paint(few), empty_paint(), empty_paint("furnished")) for _ in range(rounds)]
        helps = [run_help() for _ in range(rounds)]
        wholes = [(first_paint(few, WHOLE), empty_paint()) for _ in range(rounds)]
        with busy(LOAD):
            beside = [first_paint(few) for _ in range(rounds)]
        answers = [1e3 * seconds for seconds in pressed(many, presses)]
        idle = watched(few, seconds)
        opened = {view: opening(large, *keys, max(3, rounds // 3)) for view, keys in VIEWS.items()}
    centiles = quantiles(answers, n=100, method="inclusive")
    ours, empty, furnished = (Series(tuple(side)) for side in zip(*paints, strict=True))
    whole, word = (Series(tuple(side)) for side in zip(*wholes, strict=True))
    rows = (
        Row("first paint", "s", ours, empty, other="an empty Textual app", goal="under 0.7 s, 1.5 × an empty app"),
        Row("first paint", "s", ours, furnished, other="one with header, empty table and footer"),
        Row(f"first paint beside {LOAD} busy programs", "s", Series(tuple(beside)), goal="under 0.5 s"),
        Row("the whole first view", "s", whole, word, other="an empty Textual app"),
        Row("`marlaas --help`", "s", Series(tuple(helps)), goal="under 0.15 s"),
        Row("key to first byte, median", "ms", Series((centiles[49],))),
        Row("key to first byte, 95th percentile", "ms", Series((centiles[94],)), goal="under 20 ms"),
        Row("32 running tasks: share of a core", "%", Series((idle.share,)), goal="under 3 %"),
        Row("32 running tasks: to the terminal", "kB/s", Series((idle.kilobytes,)), goal="under 25 kB/s"),
        Row("32 running tasks: resident memory", "MB", Series((idle.megabytes,)), goal="under 100 MB"),
        *(
            Row(f"{TRAJECTORIES:,} trajectories: {view} opens", "s", Series(tuple(one.seconds)), goal="under 0.3 s")
            for view, one in opened.items()
        ),
        Row(
            f"{TRAJECTORIES:,} trajectories: resident memory",
            "MB",
            Series(tuple(one.megabytes for one in opened.values())),
            goal="under 100 MB",
        ),
    )
    return Section("terminal", "The terminal application", METHOD, rows)


METHOD = f"""In a pseudo-terminal of 80 × 24 that reads as fast as it can. *First paint*: from the start of the process
until a task of the queue stands there, on a home with 32 tasks of 400 steps; beside it, turn by turn, a Textual program
that shows one word, and one that has what every program begins with; and once more while {LOAD} other programs compute
without a pause, whatever cores there are. What is painted first is the queue's table as text, before Textual is loaded;
*the whole first view* has all else, and answers keys. *Key to first byte*: the cursor of a queue of 64
running tasks moves up and down, while another process commits a step of the next of them every {1e3 * CHANGES:.0f} ms.
*32 running tasks*: nobody touches the keys, and each task makes a step in two seconds. *{TRAJECTORIES:,} trajectories*:
of one task, from the key until the newest of them, or the list of its newest steps, stands there."""


def marlaas(home: Home) -> Session:
    """The application on a home."""
    return Session((*MARLAAS, "--home", str(home.root)))


def first_paint(home: Home, text: str = PAINTED) -> float:
    """Seconds until the tasks are there, or another text."""
    with marlaas(home) as session:
        return session.until(text) - session.began


def empty_paint(*words: str) -> float:
    """The same of the empty program and its word."""
    with Session((*EMPTY, *words)) as session:
        return session.until(empty.TEXT) - session.began


def pressed(home: Home, presses: int) -> list[float]:
    """Seconds from each of many keys to the first byte after it, while the database changes all the time."""
    with engine(home, CHANGES), marlaas(home) as session:
        session.until(PAINTED)
        session.watch(2)
        return [session.press("jk"[number % 2]) for number in range(presses)]


def watched(home: Home, seconds: float) -> Idle:
    """What the program takes while tasks make steps."""
    with engine(home, STEPS), marlaas(home) as session:
        session.until(PAINTED)
        session.watch(3)
        spent, received = session.spent, session.received
        session.watch(seconds)
        share = 100 * (session.spent - spent) / seconds
        return Idle(share, (session.received - received) / seconds / 1e3, session.megabytes)


def opening(home: Home, key: str, wanted: str, rounds: int) -> Opened:
    """Open a view of a task, in a fresh program each time."""
    times, megabytes = [], 0.0
    for _ in range(rounds):
        with marlaas(home) as session:
            session.until(PAINTED)
            session.settle(0.2)
            times.append(session.show(key, wanted))
            session.settle(0.2)
            megabytes = max(megabytes, session.megabytes)
    return Opened(times, megabytes)


@contextmanager
def busy(programs: int) -> Iterator[None]:
    """So many programs that compute without a pause, as a machine that trains has."""
    processes = [subprocess.Popen((sys.executable, "-c", "while True: pass")) for _ in range(programs)]
    try:
        yield
    finally:
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()


@contextmanager
def engine(home: Home, interval: float) -> Iterator[subprocess.Popen[bytes]]:
    """Somebody who writes into the home as an engine does."""
    process = subprocess.Popen((*ENGINE, str(home.root), str(interval)))
    try:
        yield process
        if process.poll() is not None:
            raise RuntimeError("The pretended engine has died.")
    finally:
        process.kill()
        process.wait()
