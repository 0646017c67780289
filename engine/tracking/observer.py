"""``python -P -m marlaas.engine.tracking.observer HOME CLIENT``: sends what a home measures to one tracker.

It ends when its standard input is closed, after a last look. Each line that it prints is for the engine's log.
"""

from __future__ import annotations

import json
import math
import os
import select
import sys
import uuid
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from operator import itemgetter
from pathlib import Path
from time import monotonic, time
from typing import Any

from ..errors import MarlaasError
from ..home.paths import Home
from ..home.settings import TrackSettings, load_settings
from ..store.queries.reader import Reader
from ..store.rows import FINISHED, EvalRow, StepRow, TaskRow
from .clients import CLIENTS, Run, Tracker

POLL = 2.0
SETTLED = 5.0
"""Seconds after which a running task's newest step has all its metrics: the canary's come last."""
FIRST_PAUSE, LONGEST_PAUSE = 1.0, 60.0
"""Seconds before a run that failed is tried again."""
MISSING = 3
"""Exit code: the tracker's package is not installed."""


@dataclass
class Sent:
    """How far one policy's curve is sent."""

    step: int = 0
    evals: int = 0
    ended: str = ""


@dataclass
class Progress:
    """Kept in the home, so that a run goes on under its id wherever the home lies."""

    home: str = field(default_factory=lambda: uuid.uuid4().hex[:8])
    since: float = field(default_factory=time)
    """Tasks that ended before are sent only if their own task file asks for it."""
    runs: dict[str, Sent] = field(default_factory=dict)


class Observer:
    """Follows all tracked tasks of a home."""

    def __init__(self, home: Home, client: str, settings: TrackSettings, tell: Callable[[str], None]) -> None:
        """``tell``: a sentence for the engine's log."""
        self._say = tell
        self._home, self._client, self._settings = home, client, settings
        self._file = home.root / "track" / f"{client}.json"
        self._progress = _read(self._file)
        self._keep()  # also if nothing can be sent for days
        self._over: dict[int, str] = {}
        """Tasks that ended, with nothing left to be sent, and how they ended."""
        self._trackers: dict[str, Tracker] = {}
        self._pauses: dict[str, tuple[float, float]] = {}
        """Seconds of the last pause, and when it is over."""
        self._told = ""

    def look(self, last: bool = False) -> None:
        """Send what is new. ``last``: also what may still get metrics."""
        with Reader(self._home.database) as reader:
            for number, state in reader.states().items():
                if self._over.get(number) == state or (task := reader.task(number)) is None:
                    continue
                config = reader.task_config(number)
                if self._wanted(task, config):
                    for policy in task.trained or ("",):
                        self._follow(reader, task, policy, config, last)
                if state in FINISHED and self._sent(task, config):
                    self._over[number] = state

    def _sent(self, task: TaskRow, config: Mapping[str, Any]) -> bool:
        """Whether nothing of a task that ended is left."""
        runs = [self._progress.runs.get(self._id(task, policy)) for policy in task.trained or ("",)]
        return not self._wanted(task, config) or all(run is not None and run.ended == task.state for run in runs)

    def _wanted(self, task: TaskRow, config: Mapping[str, Any]) -> bool:
        if own := config.get("track", {}).get("to"):
            return self._client in own
        return self._client in self._settings.to and (task.finished or math.inf) >= self._progress.since

    def _id(self, task: TaskRow, policy: str) -> str:
        return f"marlaas-{self._progress.home}-{task.id}" + (f"-{policy}" if len(task.trained) > 1 else "")

    def _follow(self, reader: Reader, task: TaskRow, policy: str, config: Mapping[str, Any], last: bool) -> None:
        name = self._id(task, policy)
        pause, until = self._pauses.get(name, (0.0, 0.0))
        if monotonic() < until and not last:
            return
        try:
            self._send(reader, task, policy, name, config, last)
            self._pauses.pop(name, None)
        except ImportError as error:
            self._tell(f"{self._client} is not installed, so nothing is sent: pip install {self._client} ({error})")
            sys.exit(MISSING)
        except Exception as error:  # a client may raise anything
            self._trackers.pop(name, None)
            pause = min(max(FIRST_PAUSE, 2 * pause), LONGEST_PAUSE)
            self._pauses[name] = pause, monotonic() + pause
            self._tell(f"{self._client}: task {task.id} waits: {type(error).__name__}: {str(error)[:300]}")

    def _send(
        self, reader: Reader, task: TaskRow, policy: str, name: str, config: Mapping[str, Any], last: bool
    ) -> None:
        sent = self._progress.runs.get(name) or Sent()
        own = policy if len(task.trained) > 1 else None
        steps, evals = reader.steps(task.id, sent.step, own), reader.evals(task.id, own)[sent.evals :]
        if steps and task.state == "running" and not last and time() - steps[-1].created < SETTLED:
            steps = steps[:-1]
        ended = task.state if task.state in FINISHED else ""
        if not (steps or evals or ended != sent.ended):
            return
        tracker = self._trackers.get(name) or self._begun(task, own, name, config, sent)
        self._trackers[name] = tracker
        rows = [(row.created, row.step, _step_values(row)) for row in steps]
        rows += [(row.created, row.step, _eval_values(row)) for row in evals]
        for when, step, values in sorted(rows, key=itemgetter(0)):
            tracker.log(step, when, values)
        tracker.flush()
        if ended:
            tracker.end(ended)
            del self._trackers[name]
        self._progress.runs[name] = Sent(steps[-1].step if steps else sent.step, sent.evals + len(evals), ended)
        self._keep()

    def _begun(self, task: TaskRow, policy: str | None, name: str, config: Mapping[str, Any], sent: Sent) -> Tracker:
        words = f"{task.tenant}/{task.name} {task.id} {policy or ''}".rstrip()
        safe = "".join(letter if letter.isalnum() or letter in " ._-=" else "-" for letter in words)
        folder = Path(self._settings.folder or self._file.parent / self._client).expanduser()
        return CLIENTS[self._client](
            Run(name, safe, self._settings.project, config, folder, sent.step, task.started or time())
        )

    def _keep(self) -> None:
        self._file.parent.mkdir(parents=True, exist_ok=True)
        draft = self._file.with_suffix(".draft")
        draft.write_text(json.dumps(asdict(self._progress)), encoding="utf-8")
        os.replace(draft, self._file)

    def _tell(self, sentence: str) -> None:
        if sentence != self._told:
            self._told = sentence
            self._say(" ".join(sentence.split()))


def _read(file: Path) -> Progress:
    try:
        stored = json.loads(file.read_text("utf-8"))
        runs = {name: Sent(**sent) for name, sent in stored["runs"].items()}
        return Progress(stored["home"], stored["since"], runs)
    except (OSError, ValueError, KeyError, TypeError):
        return Progress()


def _step_values(row: StepRow) -> dict[str, float]:
    return {f"train/{name}": value for name, value in row.metrics.items() if math.isfinite(value)}


def _eval_values(row: EvalRow) -> dict[str, float]:
    place = "held_out" if row.split == "eval" else row.split
    place = f"{place}/{row.suite}" if row.suite else place
    scores = {"score": row.score, "stderr": row.stderr, "best_of": row.best_of, "pass_at": row.pass_at}
    return {
        f"{place}/{name}": value
        for name, value in (scores | dict(row.metrics)).items()
        if value is not None and math.isfinite(value)
    }


def main() -> None:
    """Follow until standard input is closed."""
    home, client = Home(Path(sys.argv[1])), sys.argv[2]
    log = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # clients print what they like
    tell = partial(print, file=log)
    observer, open_input = Observer(home, client, load_settings(home).track, tell), True
    while open_input:
        open_input = not select.select([sys.stdin], [], [], POLL)[0]
        try:
            observer.look(last=not open_input)
        except MarlaasError as error:
            tell(str(error))


if __name__ == "__main__":
    main()
