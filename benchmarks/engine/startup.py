"""How long until something happens: `marlaas demo` to its first optimizer step, `marlaas --help` to its end.

Every run is the real program in a fresh process; the demo gets a fresh home each time, while the files of the programs
stay in the system's cache, as on the second day after an installation.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from contextlib import suppress
from pathlib import Path
from time import perf_counter, sleep, time

from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.store.queries.reader import Reader

from ..report.figures import Row, Section, Series

MARLAAS = (sys.executable, "-P", "-m", "marlaas.app.cli.main")
PATIENCE = 120.0
"""Seconds after which a demo without a step counts as failed."""
POLL = 0.2
"""Seconds between looks at the store: seldom enough not to matter."""
STEP = "first step"
ON_THE_WAY = {
    "engine": "the engine has opened its store",
    "workers": "its environments and workers stand",
    "version": "version 0 is committed",
}
"""What happens before the first step, in order."""


def measure(quick: bool) -> Section:
    """Start both programs a few times; about a minute."""
    run_help(), run_demo()  # the first of each warms the file cache
    demos = [run_demo() for _ in range(2 if quick else 5)]
    helps = tuple(run_help() for _ in range(3 if quick else 20))
    rows = (
        *(Row(f"`marlaas demo`: {words}", "s", Series(moments(demos, what))) for what, words in ON_THE_WAY.items()),
        Row("`marlaas demo`: the first step is committed", "s", Series(moments(demos, STEP)), goal="under 6 s"),
        Row("`marlaas --help`", "s", Series(helps), goal="under 0.15 s"),
    )
    return Section("startup", "Start-up", METHOD, rows)


METHOD = """Wall time from the start of the process, in a fresh home, with a warm file cache. The moments of the demo
are those that the engine wrote into its store, so they hold nothing of how often the benchmark looks; the step is the
first of any of the three tasks."""


def moments(demos: list[dict[str, float]], what: str) -> tuple[float, ...]:
    """Seconds from the start to one event, of all runs."""
    return tuple(demo[what] for demo in demos)


def run_help() -> float:
    """Seconds that the help takes."""
    began = perf_counter()
    subprocess.run([*MARLAAS, "--help"], check=True, stdout=subprocess.DEVNULL)
    return perf_counter() - began


def run_demo() -> dict[str, float]:
    """Start the demo, wait for its first step, end it; seconds from its start to each event."""
    with tempfile.TemporaryDirectory(prefix="marlaas-bench-") as folder:
        home = Home(Path(folder) / "home")
        began = time()
        demo = subprocess.Popen(
            [*MARLAAS, "demo", "--json"],
            env=os.environ | {"MARLAAS_HOME": str(home.root)},
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        try:
            return {what: moment - began for what, moment in follow(home, demo, began).items()}
        finally:
            demo.send_signal(signal.SIGINT)
            demo.communicate()


def follow(home: Home, demo: subprocess.Popen[bytes], began: float) -> dict[str, float]:
    """When each event happened, once the first step has. Raises ``RuntimeError`` if it does not."""
    while time() - began < PATIENCE and demo.poll() is None:
        sleep(POLL)
        if home.database.exists():
            with suppress(MarlaasError), Reader(home.database) as reader:
                found = events(reader)
                if STEP in found:
                    return found
    raise RuntimeError("The demo made no step.")


def events(reader: Reader) -> dict[str, float]:
    """The times of what has happened so far."""
    engine, tasks = reader.engine(), reader.tasks()
    times = {
        "engine": [engine.started] if engine else [],
        "workers": [event.created for event in reader.events() if event.kind == "engine"],
        "version": [version.created for task in tasks for version in reader.versions(task.id) if not version.number],
        STEP: [step.created for task in tasks for step in reader.steps(task.id)],
    }
    return {what: min(moments) for what, moments in times.items() if moments}
