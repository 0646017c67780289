"""How soon the terminal application is there, in a real pseudo-terminal, and how long ``marlaas --help`` takes.

Next to it, in turns, a Textual program that shows one word.
"""

from __future__ import annotations

import fcntl
import json
import math
import os
import pty
import re
import select
import struct
import subprocess
import sys
import tempfile
import termios
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from time import perf_counter

from sqlite_utils import Database

from marlaas.engine.home.paths import Home
from marlaas.engine.store.database import insert, insert_all, open_database, transaction
from marlaas.engine.store.schema import SUMS

from .report.figures import Row, Section, Series

MARLAAS = (sys.executable, "-P", "-m", "marlaas.app.cli.main")
WORD = "nothing-else"
EMPTY = f"""\
from textual.app import App
from textual.widgets import Static

class EmptyApp(App):
    def compose(self):
        yield Static({WORD!r})

EmptyApp().run()
"""
PAINTED = "task-01-sums"
"""Stands on the first screen of a filled home."""
WHOLE = "palette"
"""Stands there once the whole view is drawn: the last of its keys."""
TASKS, STEPS = 32, 400
TENANTS = ("physics", "bio", "chemistry", "maths")
METRICS = ("reward", "loss", "entropy", "grad_norm", "clipped", "gap_mean", "gap_max", "staleness", "tokens", "seconds")
COLUMNS, ROWS = 80, 24
PATIENCE = 60.0
"""Seconds after which a text that does not come counts as failed."""
KEPT = 200_000
"""Newest characters that a text is looked for in."""
_ESCAPES = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*[@-~]|[\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\)|[ -/]*[0-~])")
METHOD = f"""\
In a pseudo-terminal of {COLUMNS} × {ROWS} that reads as fast as it can. *First paint*: from the start of the
process until a task of the queue stands there, on a home with {TASKS} tasks of {STEPS} steps; next to it, in turns, a
Textual program that shows one word. What is painted first is the queue's table as text, before Textual is loaded; *the
whole first view* has all else, and answers keys. The first run of each program, which fills the file cache, is not
counted."""


def measure(quick: bool) -> Section:
    """Takes a minute."""
    rounds = 3 if quick else 15
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        home = filled(Path(folder) / "home")
        application, empty = (*MARLAAS, "--home", str(home.root)), (sys.executable, "-P", "-c", EMPTY)
        seen: list[tuple[float, ...]] = [
            (painted(application, PAINTED), painted(empty, WORD), painted(application, WHOLE), run_help())
            for _ in range(rounds + 1)
        ]
    first, word, whole, helped = (Series(tuple(values)) for values in zip(*seen[1:], strict=True))
    other = "an empty Textual app"
    rows = (
        Row("first paint", "s", first, word, other, goal="under 0.7 s, 1.5 × an empty app"),
        Row("the whole first view", "s", whole, word, other),
        Row("`marlaas --help`", "s", helped, goal="under 0.15 s"),
    )
    return Section("terminal", "The terminal application", METHOD, rows)


def run_help() -> float:
    """Seconds that the help takes."""
    began = perf_counter()
    subprocess.run([*MARLAAS, "--help"], check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - began


def painted(command: Sequence[str], text: str) -> float:
    """Seconds from the start of a program until it shows a text, between whatever escape sequences.

    Raises ``RuntimeError`` if the text does not come, or the program ends before.
    """
    terminal, other = pty.openpty()
    fcntl.ioctl(other, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "COLORTERM")}
    environment["TERM"] = "xterm-256color"
    began = perf_counter()
    process = subprocess.Popen(
        command, stdin=other, stdout=other, stderr=other, start_new_session=True, env=environment
    )
    os.close(other)
    seen = b""
    try:
        while text.encode() not in _ESCAPES.sub(b"", seen):
            if perf_counter() - began > PATIENCE:
                raise RuntimeError(f"The text {text!r} never came: {seen[-500:]!r}")
            if select.select([terminal], [], [], 0.1)[0]:
                data = b""
                with suppress(OSError):  # Linux raises it when the other end is closed
                    data = os.read(terminal, 65536)
                if not data:
                    raise RuntimeError(f"The program ended with {process.wait()}: {seen[-500:]!r}")
                seen = (seen + data)[-KEPT:]
        return perf_counter() - began
    finally:
        process.kill()
        process.wait()
        os.close(terminal)


def filled(folder: Path, tasks: int = TASKS, steps: int = STEPS) -> Home:
    """A home with running tasks that have made some steps, as an engine would have written it."""
    home, now = Home(folder).create(), time.time()
    database = open_database(home.database)
    with transaction(database):
        engine = {"state": "running", "heartbeat": now, "pid": os.getpid(), "started": now, "base": "tiny"}
        insert(database, "engines", engine)
        for number in range(1, tasks + 1):
            _fill_task(database, number, steps, now)
        for number in range(200):
            event = {"task": number % tasks + 1, "level": "info", "kind": "task", "created": now}
            insert(database, "events", event | {"message": f"Something happened, number {number}."})
    database.conn.close()
    return home


def _fill_task(database: Database, task: int, steps: int, now: float) -> None:
    name = f"task-{task:02}-sums"
    row = {"id": task, "tenant": TENANTS[task % len(TENANTS)], "name": name, "environment": "arithmetic"}
    row |= {"state": "running", "config": json.dumps({"name": name, "train": {"groups_per_step": 8}})}
    insert(database, "tasks", row | {"steps": 10_000_000, "created": now - 3600, "started": now - 3500})
    insert(database, "policies", {"id": task, "task": task, "name": "policy", "config": "{}", "step": steps})
    for step in range(1, steps + 1):
        version = {"policy": task, "number": step, "name": f"t{task}-v{step}-i1", "incarnation": 1, "label": ""}
        version |= {"state": "committed", "checksum": "0" * 16, "path": "x", "size": 1_300_000, "created": now}
        made = {"policy": task, "number": step, "version": insert(database, "versions", version), "incarnation": 1}
        insert(database, "steps", made | {"seconds": 0.4, "created": now})
        reward = min(1.0, 0.15 + 0.75 * (1 - math.exp(-step / 100)) + 0.06 * math.sin(1.7 * step + task))
        values = {metric: 0.01 * ((step + task) % 97) for metric in METRICS} | {"reward": reward}
        rows = [{"policy": task, "step": step, "name": metric, "value": value} for metric, value in values.items()]
        insert_all(database, "metrics", rows)
    database.conn.execute(f"{SUMS} WHERE id = ?", [task])
    for step in range(0, steps, 50):
        measured = {"policy": task, "step": step, "version": None, "environment_version": "e1", "series": "e1"}
        insert(database, "evals", measured | {"score": 0.5, "stderr": 0.03, "n": 64, "floor": 0.08, "created": now})
