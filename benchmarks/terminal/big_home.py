"""A home of 100,000 groups: how soon the application is there, each of its views, the verbs, and the engine.

Beside each figure, turn by turn, that of a home of the same tasks which have only begun: what grows with a home's age
is seen in the ratio.
"""

from __future__ import annotations

import os
import resource
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from time import perf_counter, sleep, time

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader

from ..engine.startup import MARLAAS
from ..report.figures import Row, Section, Series, Unmeasurable
from .application import marlaas
from .long_history import BYTES, EVENTS, GROUPS, MEMBERS, TASKS, history, name

FULL, SHORT, YOUNG = 100_000, 10_000, 600
"""Training groups of the large home, in the short form, and of the home beside it."""
LONG = TASKS
"""The number of the task with half of the groups."""
ROOM = 1.15
"""Room that must be there, to what the home is expected to take."""
PATIENCE = 120.0
"""Seconds after which an engine that serves nothing counts as failed."""
SAID = "took longer"
"""Stands in each line of the log."""


@dataclass(frozen=True)
class Turn:
    """What something took once."""

    wall: float
    processor: float
    """Seconds of the processor."""


def measure(quick: bool) -> Section:
    """About three minutes with 10,000 groups; with 100,000, fifteen, and 6 GB of the disk."""
    groups, rounds, starts = (SHORT, 5, 2) if quick else (FULL, 15, 5)
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        _check_room(Path(folder), groups)
        large, young = history(Path(folder) / "large", groups), history(Path(folder) / "young", YOUNG)
        size = large.database.stat().st_size / 1e9
        rows = [*_application(large, young, rounds), *_verbs(large, young, rounds), *_engine(large, young, starts)]
    return Section("big_home", "A home of 100,000 groups", method(groups, size), tuple(rows))


def method(groups: int, size: float) -> str:
    """How it was measured."""
    return f"""A home with {groups:,} training groups of {MEMBERS} episodes, {TASKS} tasks of which one has half of all,
evaluations, findings and {EVENTS:,} lines in the log: a database of {size:.1f} GB, which the engine's own functions
wrote. Beside it, turn by turn, one of the same tasks with {YOUNG} groups. *First paint* and *views*: in a
pseudo-terminal of 80 × 24, from the start of the process, or the key, until the rows stand there; processor time is
that of the application alone, until nothing is drawn any more. *Verbs*: from the start of the process to its end.
*Engine*: from `marlaas engine start` until it serves, with its workers, and the long task goes on from its newest
version. The file cache is warm."""


def _check_room(folder: Path, groups: int) -> None:
    """Raise ``Unmeasurable`` where the home would not fit."""
    needed, free = ROOM * groups * MEMBERS * BYTES * 1.1, shutil.disk_usage(folder).free
    if free < needed:
        raise Unmeasurable(f"the home would take {needed / 1e9:.1f} GB, and {folder} has {free / 1e9:.1f} GB free.")


def _application(large: Home, young: Home, rounds: int) -> list[Row]:
    first_paint(large), first_paint(young)
    paints = [(first_paint(large), first_paint(young)) for _ in range(rounds)]
    rows = _rows("first paint", paints, "under 0.3 s")
    seen: dict[str, list[tuple[Turn, Turn]]] = {}
    for _ in range(max(2, rounds // 3)):
        for view, ours, theirs in zip(views(large), walk(large), walk(young), strict=True):
            seen.setdefault(view, []).append((ours, theirs))
    for view, pairs in seen.items():
        rows += _rows(f"{view}, from its key", pairs, "under 0.1 s")
    return rows


def views(home: Home) -> dict[str, tuple[str, str]]:
    """The views in the order in which they are opened: the keys of each, and what then stands there."""
    with Reader(home.database) as reader:
        task = reader.task(LONG)
    assert task is not None
    group = f"group {GROUPS * task.step - 1}"
    return {
        "the task below the cursor": ("j", name(TASKS - 2)),
        "a task": ("k\r", group),
        "rollouts": ("t", "all steps"),
        "a group of rollouts": ("\r", "all groups"),
        "adapters": ("5", "resumable"),
        "engine": ("6", "throughput"),
        "logs": ("7", SAID),
        "queue": ("1", name(TASKS - 1)),
    }


def walk(home: Home) -> list[Turn]:
    """Open one view after the other."""
    turns = []
    with marlaas(home) as session:
        session.until(name(TASKS - 1))
        session.settle(0.3)
        for keys, wanted in views(home).values():
            before = session.spent
            wall = session.show(keys, wanted)
            session.settle(0.3)
            turns.append(Turn(wall, session.spent - before))
    return turns


def first_paint(home: Home) -> Turn:
    """From the start of the process until the newest task is there."""
    with marlaas(home) as session:
        return Turn(session.until(name(TASKS - 1)) - session.began, session.spent)


def _verbs(large: Home, young: Home, rounds: int) -> list[Row]:
    rows = []
    for words in (("list",), ("show", f"{LONG}"), ("adapters", "list"), ("rollouts", f"{LONG}"), ("report", f"{LONG}")):
        verb(large, *words), verb(young, *words)
        rows += _rows(f"`marlaas {words[0]}`", [(verb(large, *words), verb(young, *words)) for _ in range(rounds)])
    return rows


def verb(home: Home, *words: str) -> Turn:
    """A verb from its start to its end; what it writes lies in the home."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), perf_counter()
    command = [*MARLAAS, "--home", str(home.root), *words]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=home.root)
    wall, after = perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    return Turn(wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)


def _engine(large: Home, young: Home, starts: int) -> list[Row]:
    marks = [(engine_start(large), engine_start(young)) for _ in range(starts)]
    what: tuple[tuple[str, Callable[[Start], float], str], ...] = (
        ("engine: its store is open", lambda one: one.opened, ""),
        ("engine: it serves, with its workers", lambda one: one.serves, "under 2 s"),
        ("engine: processor time of the engine alone until then", lambda one: one.processor, ""),
    )
    return [_row(words, "s", [(of(ours), of(theirs)) for ours, theirs in marks], goal) for words, of, goal in what]


@dataclass(frozen=True)
class Start:
    """Seconds from the start of an engine."""

    opened: float
    serves: float
    processor: float


def engine_start(home: Home) -> Start:
    """Start an engine, wait until it serves, stop it."""
    began = time()
    engine = subprocess.Popen(
        [*MARLAAS, "--home", str(home.root), "engine", "run"],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    try:
        while time() - began < PATIENCE and engine.poll() is None:
            sleep(0.05)
            with suppress(MarlaasError), Reader(home.database) as reader:
                row = reader.engine()
                said = [event for event in reader.events(limit=50) if event.kind == "engine" and event.created > began]
                if row is not None and said:
                    return Start(row.started - began, said[0].created - began, _spent(engine.pid))
        raise RuntimeError("The engine does not serve.")
    finally:
        with suppress(ProcessLookupError):
            os.kill(engine.pid, 15)
        engine.wait()


def _spent(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / float(os.sysconf("SC_CLK_TCK"))


def _rows(what: str, pairs: list[tuple[Turn, Turn]], goal: str = "") -> list[Row]:
    return [
        _row(what, "s", [(ours.wall, theirs.wall) for ours, theirs in pairs], goal),
        _row(f"{what}: processor time", "s", [(ours.processor, theirs.processor) for ours, theirs in pairs], ""),
    ]


def _row(what: str, unit: str, pairs: list[tuple[float, float]], goal: str) -> Row:
    ours, theirs = (Series(tuple(pair[side] for pair in pairs)) for side in (0, 1))
    return Row(what, unit, ours, theirs, other="a young home", goal=goal)
