"""The one reader of the terminal application: the store in, immutable snapshots out.

``poll`` is called in a thread about once a second and costs a fraction of a millisecond while nothing has changed. It
never raises: what goes wrong is part of the snapshot, for the status line. No widget ever sees SQL or a connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from textual.message import Message

from marlaas.engine.errors import MarlaasError
from marlaas.engine.store.reader import Reader
from marlaas.engine.store.rows import EngineRow, EvalRow, StepRow, TaskRow, TrajectoryRow, WorkerRow

from .views import queue_order

TRAJECTORIES = 50
"""How many of the newest trajectories of the open task are kept at hand."""


@dataclass(frozen=True)
class Detail:
    """What the screen of one task shows beyond its row."""

    task: int
    steps: tuple[StepRow, ...] = ()
    evals: tuple[EvalRow, ...] = ()
    trajectories: tuple[TrajectoryRow, ...] = ()
    """Newest first."""


@dataclass(frozen=True)
class Snapshot:
    """The store at one moment."""

    now: float
    tasks: tuple[TaskRow, ...] = ()
    rewards: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """Rewards of the last steps by task: the sparklines."""
    engine: EngineRow | None = None
    workers: tuple[WorkerRow, ...] = ()
    detail: Detail | None = None
    """Of the task that is watched."""
    outcomes: Mapping[int, str] = field(default_factory=dict)
    """Commands that the engine has answered since the last snapshot; empty text is success."""
    problem: str = ""
    """Why the store could not be read; the rest is then as it was before."""

    def task(self, number: int) -> TaskRow | None:
        """A task by its number."""
        return next((task for task in self.tasks if task.id == number), None)

    @property
    def ordered(self) -> list[TaskRow]:
        """The tasks as the queue shows them."""
        return sorted(self.tasks, key=queue_order)

    @property
    def unfinished(self) -> int:
        """How many tasks the engine still works on."""
        return sum(task.unfinished and task.state != "paused" for task in self.tasks)


class Feed:
    """Polls one database. ``watch`` and ``expect`` may be called from another thread."""

    @dataclass
    class Updated(Message, bubble=False):
        """A new snapshot."""

        snapshot: Snapshot

    def __init__(self, database: Path, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._reader: Reader | None = None
        self._file: tuple[int, int] | None = None
        self._seen: tuple[int, int | None] | None = None
        self._watched: int | None = None
        self._expected: tuple[int, ...] = ()
        self._steps_of_rewards: dict[int, int] = {}
        self._last = Snapshot(now=clock())
        self._closed = False

    def watch(self, task: int | None) -> None:
        """From the next poll on, read this task's detail."""
        self._watched = task

    def expect(self, command: int) -> None:
        """From the next poll on, look for the outcome of this command."""
        self._expected = (*self._expected, command)

    def poll(self) -> Snapshot:
        """Read what has changed."""
        with self._lock:
            if self._closed:
                return self._last
            try:
                self._last = self._read()
            except MarlaasError as error:
                self._forget()
                self._last = replace(self._last, now=self._clock(), outcomes={}, problem=str(error))
            return self._last

    def close(self) -> None:
        """Close the connection for good; a late poll finds nothing new."""
        with self._lock:
            self._forget()
            self._closed = True

    def _read(self) -> Snapshot:
        now = self._clock()
        reader = self._open()
        if reader is None:
            return Snapshot(now=now)
        seen = (reader.changed(), self._watched)
        if seen == self._seen and not self._last.problem:
            return replace(self._last, now=now, outcomes={})
        tasks = tuple(reader.tasks())
        snapshot = Snapshot(
            now=now,
            tasks=tasks,
            rewards=self._rewards(reader, tasks),
            engine=reader.engine(),
            workers=tuple(reader.workers()),
            detail=self._detail(reader, seen[1]),
            outcomes=self._outcomes(reader),
        )
        self._seen = seen
        return snapshot

    def _open(self) -> Reader | None:
        """The connection; None while there is no database. A file that was replaced is opened anew."""
        try:
            status = self._database.stat()
        except OSError:
            self._forget()
            return None
        file = (status.st_dev, status.st_ino)
        if file != self._file:
            self._forget()
        if self._reader is None:
            self._reader, self._file = Reader(self._database), file
        return self._reader

    def _forget(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._file = self._seen = None
        self._steps_of_rewards.clear()

    def _rewards(self, reader: Reader, tasks: tuple[TaskRow, ...]) -> dict[int, tuple[float, ...]]:
        """Sparklines; read again only for tasks that have made a step."""
        rewards = {}
        for task in tasks:
            fresh = self._steps_of_rewards.get(task.id) == task.step
            rewards[task.id] = self._last.rewards[task.id] if fresh else tuple(reader.rewards(task.id))
            self._steps_of_rewards[task.id] = task.step
        return rewards

    def _detail(self, reader: Reader, task: int | None) -> Detail | None:
        if task is None:
            return None
        row = reader.task(task)
        known: tuple[StepRow, ...] = ()
        if row and self._last.detail and self._last.detail.task == task:
            known = tuple(step for step in self._last.detail.steps if step.step < row.step)[:-1]
        newer = reader.steps(task, after=known[-1].step if known else 0)
        return Detail(
            task, (*known, *newer), tuple(reader.evals(task)), tuple(reader.trajectories(task, limit=TRAJECTORIES))
        )

    def _outcomes(self, reader: Reader) -> dict[int, str]:
        if not self._expected:
            return {}
        outcomes = reader.command_outcomes(self._expected)
        self._expected = tuple(command for command in self._expected if command not in outcomes)
        return outcomes
