"""The one reader of the terminal application: the store in, immutable snapshots out.

``poll`` is called in a thread about once a second and costs a fraction of a millisecond while nothing has changed. It
never raises: what goes wrong is part of the snapshot, for the status line. No widget ever sees SQL or a connection.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

from textual.message import Message

from marlaas.engine.devices import llama_build
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home import Home
from marlaas.engine.store import PaceRow, TaskRow

from ..context.snapshot import Snapshot
from ..home.base_size import base_size
from ..questions.question import Question
from ..reading.home_reader import HomeReader
from ..reading.opening import exists, opened
from ..words.format import short_path
from ..words.machine import llama_note


@dataclass(frozen=True)
class _Course:
    """The latest rewards and speed of a task."""

    rewards: tuple[float, ...]
    policies: tuple[tuple[str, tuple[float, ...]], ...]
    """The latest rewards of each trained policy, by name, where there are several."""
    pace: PaceRow | None


def _course(reader: HomeReader, task: TaskRow) -> _Course:
    policies = ((name, tuple(reader.rewards(task.id, policy=name))) for name in task.trained)
    return _Course(tuple(reader.rewards(task.id)), tuple(policies), reader.pace(task.id))


class Feed:
    """Polls one home. ``ask`` and ``expect`` may be called from another thread."""

    @dataclass
    class Updated(Message, bubble=False):
        """There is a newer snapshot."""

        snapshot: Snapshot

    def __init__(self, home: Home, clock: Callable[[], float] = time.time) -> None:
        self._home = home
        self._clock = clock
        self._lock = threading.Lock()
        self._reader: HomeReader | None = None
        self._seen: tuple[int, Question | None] | None = None
        self._question: Question | None = None
        self._expected: tuple[int, ...] = ()
        self._steps_read: dict[int, tuple[int, ...]] = {}
        self._known: dict[int, _Course] = {}
        self._last = Snapshot(now=clock())
        self._closed = False
        self._compiled = False
        """Whether something was being compiled in this feed's time."""
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
            note = self._note(self._last.now)
            if note != self._last.note:
                self._last = replace(self._last, note=note)
            return self._last

    def _note(self, now: float) -> str:
        build = llama_build(now=now)
        self._compiled = self._compiled or (build is not None and build.state == "compiling")
        return llama_note(build, now, watched=self._compiled)

    def close(self) -> None:
        """Close the connection for good; a late poll finds nothing new."""
        with self._lock:
            self._forget()
            self._closed = True

    def _read(self) -> Snapshot:
        now = self._clock()
        reader = self._open()
        if reader is None:
            gone = f"The database has gone: {short_path(self._home.database)}." if self._had_one else ""
            return Snapshot(now=now, problem=gone)
        question = self._question
        changed, before = reader.changed(), self._seen
        if before is not None and before[0] == changed and not self._last.problem:
            if before[1] == question:
                return replace(self._last, now=now, outcomes={})
            self._seen = (changed, question)
            answer = self._answer(reader, question)
            return replace(self._last, now=now, outcomes={}, question=question, answer=answer)
        tasks = tuple(reader.tasks())
        courses = self._courses(reader, tasks)
        engine = reader.engine()
        snapshot = Snapshot(
            now=now,
            tasks=tasks,
            rewards={task: course.rewards for task, course in courses.items()},
            policy_rewards={(task, name): own for task, course in courses.items() for name, own in course.policies},
            paces={task: course.pace for task, course in courses.items() if course.pace is not None},
            engine=engine,
            workers=tuple(reader.workers()),
            turns=reader.turn_rate(),
            parameters=base_size(engine.base) if engine is not None else None,
            question=question,
            answer=self._answer(reader, question),
            outcomes=self._outcomes(reader),
        )
        self._seen = (changed, question)
        return snapshot

    def _answer(self, reader: HomeReader, question: Question | None) -> object:
        """The answer to a question; what the last answer to the same has is not read again."""
        before = self._last.answer if question == self._last.question else None
        return question.read(reader, before) if question is not None else None

    def _open(self) -> HomeReader | None:
        """The reader; None while there is nothing to read. A home that was replaced is opened anew."""
        if self._reader is not None and self._reader.stale():
            self._forget()
        if self._reader is None and exists(self._home):
            self._reader, self._had_one = opened(self._home), True
        return self._reader

    def _forget(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._seen = None
        self._steps_read.clear()

    def _courses(self, reader: HomeReader, tasks: tuple[TaskRow, ...]) -> dict[int, _Course]:
        """Sparklines and paces; read again only for tasks that have made a step."""
        courses: dict[int, _Course] = {}
        for task in tasks:
            made = (task.step, *(policy.step for policy in task.policies))
            fresh = self._steps_read.get(task.id) == made
            courses[task.id] = self._known[task.id] if fresh else _course(reader, task)
            self._steps_read[task.id] = made
        self._known = courses
        return courses

    def _outcomes(self, reader: HomeReader) -> dict[int, str]:
        if not self._expected:
            return {}
        outcomes = reader.command_outcomes(self._expected)
        self._expected = tuple(command for command in self._expected if command not in outcomes)
        return outcomes
