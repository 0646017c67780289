"""The one reader of the terminal application: the store in, immutable snapshots out.

``poll`` is called in a thread about once a second and costs a fraction of a millisecond while nothing has changed. It
never raises: what goes wrong is part of the snapshot, for the status line. No widget ever sees SQL or a connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from textual.message import Message

from marlaas.engine.errors import MarlaasError
from marlaas.engine.store.reader import Reader
from marlaas.engine.store.rows import PaceRow, TaskRow

from ..questions.question import Question
from ..words.format import short_path
from .snapshot import Snapshot


class Feed:
    """Polls one database. ``ask`` and ``expect`` may be called from another thread."""

    @dataclass
    class Updated(Message, bubble=False):
        """A further snapshot."""

        snapshot: Snapshot

    def __init__(self, database: Path, clock: Callable[[], float] = time.time) -> None:
        self._database = database
        self._clock = clock
        self._lock = threading.Lock()
        self._reader: Reader | None = None
        self._file: tuple[int, int] | None = None
        self._seen: tuple[int, Question | None] | None = None
        self._question: Question | None = None
        self._expected: tuple[int, ...] = ()
        self._steps_read: dict[int, int] = {}
        self._last = Snapshot(now=clock())
        self._closed = False
        self._had_one = False

    def ask(self, question: Question | None) -> None:
        """From the next poll on, answer this question."""
        self._question = question

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
            gone = f"The database has gone: {short_path(self._database)}." if self._had_one else ""
            return Snapshot(now=now, problem=gone)
        question = self._question
        seen = (reader.changed(), question)
        if seen == self._seen and not self._last.problem:
            return replace(self._last, now=now, outcomes={})
        reader.check_schema()
        tasks = tuple(reader.tasks())
        rewards, paces = self._courses(reader, tasks)
        before = self._last.answer if question == self._last.question else None
        snapshot = Snapshot(
            now=now,
            tasks=tasks,
            rewards=rewards,
            paces=paces,
            engine=reader.engine(),
            workers=tuple(reader.workers()),
            question=question,
            answer=question.read(reader, before) if question is not None else None,
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
            self._reader, self._file, self._had_one = Reader(self._database), file, True
        return self._reader

    def _forget(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._file = self._seen = None
        self._steps_read.clear()

    def _courses(
        self, reader: Reader, tasks: tuple[TaskRow, ...]
    ) -> tuple[dict[int, tuple[float, ...]], dict[int, PaceRow]]:
        """Sparklines and paces; read again only for tasks that have made a step."""
        rewards: dict[int, tuple[float, ...]] = {}
        paces: dict[int, PaceRow] = {}
        for task in tasks:
            fresh = self._steps_read.get(task.id) == task.step
            rewards[task.id] = self._last.rewards[task.id] if fresh else tuple(reader.rewards(task.id))
            pace = self._last.paces.get(task.id) if fresh else reader.pace(task.id)
            if pace is not None:
                paces[task.id] = pace
            self._steps_read[task.id] = task.step
        return rewards, paces

    def _outcomes(self, reader: Reader) -> dict[int, str]:
        if not self._expected:
            return {}
        outcomes = reader.command_outcomes(self._expected)
        self._expected = tuple(command for command in self._expected if command not in outcomes)
        return outcomes
