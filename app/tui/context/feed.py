"""What views show and ask: snapshots, notices, actions."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache, partial
from typing import TYPE_CHECKING, Any

from textual.widget import Widget

from marlaas.engine.devices.software import llama_build
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.models.weights import count_parameters
from marlaas.engine.queue.submission.transitions import PAST
from marlaas.engine.store.queries import machine
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EngineRow, PaceRow, TaskRow, WorkerRow
from marlaas.engine.store.submissions import command, command_all

from ...lists.lines import Courses, read_course
from ...questions import Question
from ...reading import exists, opened
from ...text.format import short_path
from ...text.machine import llama_note
from ...text.tasks import liveness, queue_order, tasks_named

if TYPE_CHECKING:
    from ...app import MarlaasApp

SHORTEST, LONGEST = 5.0, 20.0
_PACE = 15.0
"""Characters read per second (Brysbaert 2019: 238 words a minute), with time to look there."""
MOST = 3
"""Notices at the same time."""


@dataclass(frozen=True)
class Notice:
    """One passing sentence to the person."""

    text: str
    bad: bool = False
    until: float = 0.0
    """Clock time of its end in seconds; 0: in progress, ends by itself."""


def lasting(text: str) -> float:
    """Seconds of a notice: its reading time."""
    return min(LONGEST, max(SHORTEST, 2 + len(text) / _PACE))


def current(notices: Iterable[Notice], now: float) -> tuple[Notice, ...]:
    """Notices alive at ``now``, newest last; of equal sentences the newest."""
    kept = {notice.text: notice for notice in reversed([*notices]) if notice.until > now}
    return tuple(reversed(kept.values()))[-MOST:]


class Latest:
    """Runs the newest request in a thread, one at a time; drops those in between.

    ``work`` must not raise; ``then`` gets its answer in the event loop while the widget exists.
    """

    def __init__(self, owner: Widget, work: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        self._owner, self._work, self._then = owner, work, then
        self._requests: list[Any] = []
        self._busy = False
        self.current = True
        """Whether the newest request is answered."""

    def ask(self, request: Any) -> None:
        self._requests[:] = [request]
        self.current = False
        if not self._busy:
            self._busy = True
            self._owner.run_worker(self._run())

    async def _run(self) -> None:
        try:
            while self._requests:
                answer = await asyncio.to_thread(self._work, self._requests.pop())
                self.current = not self._requests
                if self._owner.is_attached and self._owner.is_running:  # what is being removed has lost some children
                    self._then(answer)
        finally:
            self._busy = False


@dataclass(frozen=True)
class Snapshot:
    """The store at one moment."""

    now: float
    tasks: tuple[TaskRow, ...] = ()
    courses: Courses = field(default_factory=dict)
    engine: EngineRow | None = None
    workers: tuple[WorkerRow, ...] = ()
    turns: float | None = None
    """Turns a second of the samplers; None: not measured."""
    parameters: int | None = None
    question: Question | None = None
    answer: object = None
    outcomes: Mapping[int, str] = field(default_factory=dict)
    """Outcomes since the last snapshot; empty text: success."""
    note: str = ""
    """Background set-up in progress."""
    problem: str = ""
    """Why the store could not be read; the rest is then old."""

    def task(self, number: int | None) -> TaskRow | None:
        return next((task for task in self.tasks if task.id == number), None)

    @property
    def serving(self) -> bool:
        return liveness(self.engine, self.now).alive

    @property
    def speeds(self) -> Mapping[int, PaceRow]:
        """By task, while an engine serves; without one no end can be estimated."""
        return {task: course.pace for task, course in self.courses.items() if course.pace and self.serving}

    @property
    def ordered(self) -> list[TaskRow]:
        return sorted(self.tasks, key=queue_order)

    @property
    def unfinished(self) -> int:
        return sum(task.unfinished and task.state != "paused" for task in self.tasks)


class Feed:
    """Polls one home. Call ``ask`` and ``expect`` from any thread.

    ``poll`` costs a fraction of a millisecond without changes. Never raises: errors are part of the snapshot.
    """

    def __init__(self, home: Home, clock: Callable[[], float] = time.time) -> None:
        self._home = home
        self._clock = clock
        self._lock = threading.Lock()
        self._reader: Reader | None = None
        self._seen: tuple[int, Question | None] | None = None
        """The state of the database and the question of the last snapshot."""
        self._question: Question | None = None
        self._expected: tuple[int, ...] = ()
        self._courses: Courses = {}
        self._last = Snapshot(now=clock())
        self._closed = self._compiled = self._had_one = False

    def ask(self, question: Question | None) -> None:
        self._question = question

    def expect(self, command: int) -> None:
        self._expected = (*self._expected, command)

    def poll(self) -> Snapshot:
        with self._lock:
            if self._closed:
                return self._last
            try:
                found = self._read()
            except MarlaasError as error:
                self._forget()
                found = replace(self._last, now=self._clock(), outcomes={}, problem=str(error))
            build = llama_build(now=found.now)
            self._compiled = self._compiled or (build is not None and build.state == "compiling")
            self._last = replace(found, note=llama_note(build, found.now, watched=self._compiled))
            return self._last

    def close(self) -> None:
        """A late poll finds nothing new."""
        with self._lock:
            self._forget()
            self._closed = True

    def _read(self) -> Snapshot:
        now, last, question = self._clock(), self._last, self._question
        if self._reader is not None and self._reader.stale():
            self._forget()
        if self._reader is None and exists(self._home):
            self._reader, self._had_one = opened(self._home), True
        reader = self._reader
        if reader is None:
            gone = f"The database has gone: {short_path(self._home.database)}." if self._had_one else ""
            return Snapshot(now=now, problem=gone)
        before, self._seen = self._seen, (reader.changed(), question)
        if before == self._seen and not last.problem:
            return replace(last, now=now, outcomes={})
        known = last.answer if question == last.question else None
        answer = question.read(reader, known) if question is not None else None
        if before is not None and before[0] == self._seen[0] and not last.problem:
            return replace(last, now=now, outcomes={}, question=question, answer=answer)
        tasks, engine = tuple(reader.tasks()), reader.engine()
        outcomes = reader.command_outcomes(self._expected) if self._expected else {}
        self._expected = tuple(command for command in self._expected if command not in outcomes)
        self._courses = {task.id: read_course(reader, task, self._courses.get(task.id)) for task in tasks}
        return Snapshot(
            now=now,
            tasks=tasks,
            courses=self._courses,
            engine=engine,
            workers=tuple(reader.workers()),
            turns=machine.turn_rate(reader),
            parameters=base_size(engine.base) if engine is not None else None,
            question=question,
            answer=answer,
            outcomes=outcomes,
        )

    def _forget(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._seen = None
        self._courses = {}


@lru_cache(8)
def base_size(name: str) -> int | None:
    """Parameters of a base, counted from its headers; None if they cannot be read."""
    try:
        return count_parameters(name)
    except (MarlaasError, OSError, ValueError):  # the name may be anything
        return None


UNDO = {"pause": "resume", "resume": "pause", "cancel": "retry"}
"""The opposite command; a retry has none, as the new attempt has begun."""
_PATIENCE = 3.0
"""Seconds until a waiting action is reported."""


@dataclass
class Act:
    """One key press, for any number of tasks."""

    kind: str
    tasks: tuple[int, ...]
    done: str
    """Empty: the words for ``kind``."""
    asked: float
    """In seconds of the snapshots' clock."""
    waiting: dict[int, int | None] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)
    written: bool = False
    """False: another process may lock the store for a while."""
    slow: bool = False
    unwanted: bool = False
    """True: to be undone once done."""


class Sender:
    """Sends actions as command rows in a thread, and turns outcomes into notices.

    One notice per action. The last action with an opposite can be undone.
    """

    def __init__(self, app: MarlaasApp, feed: Feed) -> None:
        self._app = app
        self._feed = feed
        self._now = 0.0
        self._acts: list[Act] = []
        self._last: Act | None = None

    def send(self, kind: str, tasks: Sequence[int] = (), done: str = "", **arguments: Any) -> None:
        """Without tasks, one command."""
        act = Act(kind, tuple(tasks), done, self._now)
        self._acts.append(act)
        self._app.run_worker(partial(self._write, act, arguments), thread=True, exit_on_error=False)

    def _write(self, act: Act, arguments: dict[str, Any]) -> None:
        database, problem = self._app.home.database, ""
        try:
            if act.tasks and not arguments:
                act.waiting = dict(zip(command_all(database, act.kind, act.tasks), act.tasks, strict=True))
            else:
                act.waiting = {command(database, act.kind, each, **arguments): each for each in act.tasks or (None,)}
        except MarlaasError as error:
            problem = str(error)
        self._app.call_later(self._sent, act, problem)

    def _sent(self, act: Act, problem: str) -> None:
        if problem:
            self._acts.remove(act)
            self._app.say(problem, bad=True)
        act.written = True
        for number in act.waiting:
            self._feed.expect(number)

    def take(self, outcomes: Mapping[int, str], now: float) -> None:
        self._now = now
        for act in self._acts[:]:
            for number in [number for number in act.waiting if number in outcomes]:
                task = act.waiting.pop(number)
                if outcomes[number]:
                    act.refused.append(f"Task {task}: {outcomes[number]}" if task else outcomes[number])
                    act.tasks = tuple(each for each in act.tasks if each != task)
            if act.written and not act.waiting:
                self._acts.remove(act)
                self._tell(act)
            elif now - act.asked > _PATIENCE and not act.slow:
                act.slow = True
                whom = "The engine has not answered yet" if act.written else "The database is busy"
                of = f" {tasks_named(act.tasks).lower()}" if act.tasks else ""
                self._app.say(f"{whom}; “{act.kind.replace('_', ' ')}{of}” waits.", bad=True)

    def _tell(self, act: Act) -> None:
        if act.tasks or not act.refused:
            text = act.done or f"{tasks_named(act.tasks)} {PAST.get(act.kind, act.kind)}."
            self._last = act if act.kind in UNDO else None
            if act.unwanted and act.tasks:
                self._send_opposite(act)
            else:
                self._app.say(f"{text} u undoes it." if self._last else text)
        shown = act.refused if len(act.refused) < MOST else act.refused[:1]  # next to what was done
        for refusal in shown:
            self._app.say(refusal, bad=True)
        if more := len(act.refused) - len(shown):
            self._app.say(f"… and {more:,} more were refused.", bad=True)

    def undo(self) -> None:
        """Undo the last action, once the engine has answered it."""
        waiting = next((act for act in reversed(self._acts) if act.kind in UNDO), None)
        if waiting is not None:
            waiting.unwanted = True
            opposite = f"{UNDO[waiting.kind]} {tasks_named(waiting.tasks).lower()}"
            self._app.say(f"Undoing: “{opposite}” follows as soon as “{waiting.kind}” is done.")
        elif self._last is None:
            self._app.say("Nothing to undo.", bad=True)
        else:
            self._send_opposite(self._last)

    def _send_opposite(self, act: Act) -> None:
        self._last = None
        self.send(UNDO[act.kind], act.tasks)
