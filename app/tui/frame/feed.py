"""The poll that feeds the views, and actions on their way to the engine as rows of commands."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from textual.app import App
from textual.message import Message

from marlaas.engine.devices.software import llama_build
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.submission.transitions import PAST
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import PaceRow, TaskRow
from marlaas.engine.store.submissions import command, command_all

from ...operations.this_machine import base_size
from ...questions import Question
from ...reading import exists, opened
from ...text.format import short_path
from ...text.machine import llama_note
from ...text.tasks import tasks_named
from ..context.snapshot import Notice, Snapshot

# The one reader of the terminal application: the store in, immutable snapshots out.
#
# ``poll`` is called in a thread about once a second and costs a fraction of a millisecond while nothing has changed.
# It never raises: what goes wrong is part of the snapshot, for the status line. No widget ever sees SQL or a
# connection.


@dataclass(frozen=True)
class _Course:
    """The latest rewards and speed of a task."""

    rewards: tuple[float, ...]
    policies: tuple[tuple[str, tuple[float, ...]], ...]
    """The latest rewards of each trained policy, by name, if there are several."""
    pace: PaceRow | None


def _course(reader: Reader, task: TaskRow) -> _Course:
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
        self._reader: Reader | None = None
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

    def _answer(self, reader: Reader, question: Question | None) -> object:
        """The answer to a question; what the last answer to the same has is not read again."""
        before = self._last.answer if question == self._last.question else None
        return question.read(reader, before) if question is not None else None

    def _open(self) -> Reader | None:
        """The reader; None while there is nothing to read. A home that was replaced is opened again."""
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

    def _courses(self, reader: Reader, tasks: tuple[TaskRow, ...]) -> dict[int, _Course]:
        """Sparklines and paces; read again only for tasks that have made a step."""
        courses: dict[int, _Course] = {}
        for task in tasks:
            made = (task.step, *(policy.step for policy in task.policies))
            fresh = self._steps_read.get(task.id) == made
            courses[task.id] = self._known[task.id] if fresh else _course(reader, task)
            self._steps_read[task.id] = made
        self._known = courses
        return courses

    def _outcomes(self, reader: Reader) -> dict[int, str]:
        if not self._expected:
            return {}
        outcomes = reader.command_outcomes(self._expected)
        self._expected = tuple(command for command in self._expected if command not in outcomes)
        return outcomes


# Sends actions as command rows of the store, and reports what became of them.
#
# All tasks of an action get one notice. The last action with an opposite can be undone.

UNDO = {"pause": "resume", "resume": "pause", "cancel": "retry"}
"""The command that undoes another one; a retry cannot be undone, because the new attempt has begun."""
_PATIENCE = 3.0
"""Seconds after which a person is shown that an action still waits."""
_SHOWN = 4
"""Refusals of one action that are shown."""


@dataclass
class Act:
    """One key press of a person, for any number of tasks."""

    kind: str
    tasks: tuple[int, ...]
    done: str
    """The text shown once all of it is done; empty: the words for ``kind``."""
    waiting: dict[int, int | None] = field(default_factory=dict)
    """Commands that the engine has not answered, with their tasks."""
    refused: list[str] = field(default_factory=list)
    asked: float = 0.0
    """When it was asked for, in seconds of the snapshots' clock."""
    written: bool = False
    """Whether the store has it; another process may lock the store for a while."""
    slow: bool = False
    """Whether the person has been told that it waits."""
    unwanted: bool = False
    """Whether the person wants it undone as soon as it is done."""


class Sender:
    """Sends actions in a thread of ``app`` and turns outcomes into notices."""

    @dataclass
    class Sent(Message):
        """An action is in the store, or could not be written."""

        act: Act
        problem: str = ""

    def __init__(self, app: App[Any], database: Path, feed: Feed) -> None:
        self._app = app
        self._database = database
        self._feed = feed
        self._now = 0.0
        self._acts: list[Act] = []
        self._last: Act | None = None

    def send(self, kind: str, tasks: Sequence[int] = (), done: str = "", **arguments: Any) -> None:
        """Write the commands of an action, one for each task; without tasks, one command."""
        act = Act(kind, tuple(tasks), done, asked=self._now)
        self._acts.append(act)
        self._app.run_worker(partial(self._write, act, arguments), thread=True, exit_on_error=False)

    def _write(self, act: Act, arguments: dict[str, Any]) -> None:
        try:
            if act.tasks and not arguments:
                act.waiting = dict(zip(command_all(self._database, act.kind, act.tasks), act.tasks, strict=True))
            else:
                for task in act.tasks or (None,):
                    act.waiting[command(self._database, act.kind, task, **arguments)] = task
        except MarlaasError as error:
            self._app.post_message(self.Sent(act, str(error)))
            return
        self._app.post_message(self.Sent(act))

    def unsent(self, act: Act) -> None:
        """The store could not be written."""
        self._acts.remove(act)

    def sent(self, act: Act) -> None:
        """The commands are in the store: wait for their outcomes."""
        act.written = True
        for number in act.waiting:
            self._feed.expect(number)

    def outcomes(self, outcomes: Mapping[int, str], now: float) -> Iterable[Notice]:
        """Notices about commands that the engine has answered, and about those that wait for long."""
        self._now = now
        for act in self._acts[:]:
            for number in [number for number in act.waiting if number in outcomes]:
                task = act.waiting.pop(number)
                if outcomes[number]:
                    act.refused.append(f"Task {task}: {outcomes[number]}" if task else outcomes[number])
                    act.tasks = tuple(each for each in act.tasks if each != task)
            if act.written and not act.waiting:
                self._acts.remove(act)
                yield from self._told(act)
            elif now - act.asked > _PATIENCE and not act.slow:
                act.slow = True
                whom = "The engine has not answered yet" if act.written else "The database is busy"
                of = f" {tasks_named(act.tasks).lower()}" if act.tasks else ""
                yield Notice(f"{whom}; “{act.kind.replace('_', ' ')}{of}” waits.", bad=True)

    def _told(self, act: Act) -> Iterable[Notice]:
        if act.tasks or not act.refused:
            text = act.done or f"{tasks_named(act.tasks)} {PAST.get(act.kind, act.kind)}."
            undo = act.kind in UNDO
            self._last = act if undo else None
            if act.unwanted and act.tasks:
                self._send_opposite(act)
            else:
                yield Notice(f"{text} u undoes it." if undo else text)
        shown = act.refused[:_SHOWN]
        more = len(act.refused) - len(shown)
        yield from (Notice(text, bad=True) for text in shown)
        if more:
            yield Notice(f"… and {more} more were refused.", bad=True)

    def undo(self) -> Notice | None:
        """Undo the last action, or have it undone once the engine has answered it; returns what there is to tell."""
        waiting = next((act for act in reversed(self._acts) if act.kind in UNDO), None)
        if waiting is not None:
            waiting.unwanted = True
            named = tasks_named(waiting.tasks).lower()
            return Notice(f"Undoing: “{UNDO[waiting.kind]} {named}” follows as soon as “{waiting.kind}” is done.")
        if self._last is None:
            return Notice("Nothing to undo.", bad=True)
        self._send_opposite(self._last)
        return None

    def _send_opposite(self, act: Act) -> None:
        self._last = None
        self.send(UNDO[act.kind], act.tasks)
