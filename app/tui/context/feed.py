"""What views show and ask: snapshots of the home that a poll reads, notices, and actions on their way to the engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from textual.widget import Widget

from marlaas.engine.devices.software import llama_build
from marlaas.engine.errors import MarlaasError
from marlaas.engine.home.paths import Home
from marlaas.engine.queue.submission.transitions import PAST
from marlaas.engine.store.queries.reader import Reader
from marlaas.engine.store.rows import EngineRow, PaceRow, TaskRow, WorkerRow
from marlaas.engine.store.submissions import command, command_all

from ...operations.this_machine import base_size
from ...questions import Question
from ...reading import exists, opened
from ...text.format import short_path
from ...text.machine import llama_note
from ...text.tasks import liveness, queue_order, tasks_named

if TYPE_CHECKING:
    from ...app import MarlaasApp

SHORTEST, LONGEST = 5.0, 20.0
"""Seconds that a notice stays at least and at most."""
_PACE = 15.0
"""Characters that people read in a second (Brysbaert 2019: 238 words a minute), with time to look there."""
MOST = 3
"""Notices that are shown at once: the newest."""


@dataclass(frozen=True)
class Notice:
    """One sentence that the application tells a person in passing, and that goes again by itself."""

    text: str
    bad: bool = False
    until: float = 0.0
    """When it goes, in the seconds of the clock by which it came; 0 for what is in progress, and ends by itself."""


def lasting(text: str) -> float:
    """Seconds that a notice stays: as long as it takes to be read."""
    return min(LONGEST, max(SHORTEST, 2 + len(text) / _PACE))


def counting(text: str, seconds: float) -> str:
    """What is in progress, with its seconds once there are any."""
    return f"{text} {seconds:.0f} s" if seconds >= 1 else text


def current(notices: Iterable[Notice], now: float) -> tuple[Notice, ...]:
    """Those that have not gone by ``now``, the newest last; of equal sentences the newest."""
    kept = {notice.text: notice for notice in reversed([*notices]) if notice.until > now}
    return tuple(reversed(kept.values()))[-MOST:]


class Latest:
    """Runs work in a thread for the newest request only: one runs at a time, requests in between are dropped.

    ``work`` must not raise; ``then`` gets its answer in the event loop, as long as the widget is there.
    """

    def __init__(self, owner: Widget, work: Callable[[Any], Any], then: Callable[[Any], None]) -> None:
        self._owner, self._work, self._then = owner, work, then
        self._requests: list[Any] = []
        self._busy = False

    def ask(self, request: Any) -> None:
        """Work on this as soon as the present work is done; an earlier request that still waits is dropped."""
        self._requests[:] = [request]
        if not self._busy:
            self._busy = True
            self._owner.run_worker(self._run())

    async def _run(self) -> None:
        try:
            while self._requests:
                answer = await asyncio.to_thread(self._work, self._requests.pop())
                if self._owner.is_attached and self._owner.is_running:  # what is being removed has lost some children
                    self._then(answer)
        finally:
            self._busy = False


@dataclass(frozen=True)
class Snapshot:
    """The store at one moment."""

    now: float
    tasks: tuple[TaskRow, ...] = ()
    rewards: Mapping[int, tuple[float, ...]] = field(default_factory=dict)
    """Rewards of the last steps by task, for sparklines."""
    policy_rewards: Mapping[tuple[int, str], tuple[float, ...]] = field(default_factory=dict)
    """Rewards of the last steps by task and policy, for tasks that train several."""
    paces: Mapping[int, PaceRow] = field(default_factory=dict)
    """The speed of tasks over their last steps."""
    engine: EngineRow | None = None
    workers: tuple[WorkerRow, ...] = ()
    turns: float | None = None
    """Turns a second that the samplers ended lately; None if nothing was measured."""
    parameters: int | None = None
    """The size of the engine's base; None if it is not known."""
    question: Question | None = None
    """The question of the view in sight."""
    answer: object = None
    """The answer to it."""
    outcomes: Mapping[int, str] = field(default_factory=dict)
    """Outcomes of commands that the engine has answered since the last snapshot; an empty text is success."""
    note: str = ""
    """What the set-up still does in the background, in a sentence."""
    problem: str = ""
    """Why the store could not be read; everything else is then as in the snapshot before."""

    def task(self, number: int | None) -> TaskRow | None:
        """A task by its number."""
        return next((task for task in self.tasks if task.id == number), None)

    @property
    def serving(self) -> bool:
        """Whether an engine works on the tasks at this moment."""
        return liveness(self.engine, self.now).alive

    @property
    def speeds(self) -> Mapping[int, PaceRow]:
        """``paces`` while an engine serves; without one nothing moves, so nothing can be said of when it ends."""
        return self.paces if self.serving else {}

    @property
    def ordered(self) -> list[TaskRow]:
        """The tasks as the queue shows them."""
        return sorted(self.tasks, key=queue_order)

    @property
    def unfinished(self) -> int:
        """How many tasks the engine has still to work on."""
        return sum(task.unfinished and task.state != "paused" for task in self.tasks)


class _Course(NamedTuple):
    """The latest rewards and speed of a task, as of the steps that were made."""

    made: tuple[int, ...]
    rewards: tuple[float, ...]
    policies: dict[str, tuple[float, ...]]
    pace: PaceRow | None


class Feed:
    """Polls one home. ``ask`` and ``expect`` may be called from another thread.

    ``poll`` is called in a thread about once a second and costs a fraction of a millisecond while nothing has changed.
    It never raises: what goes wrong is part of the snapshot.
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
        self._courses: dict[int, _Course] = {}
        self._last = Snapshot(now=clock())
        self._closed = self._compiled = self._had_one = False

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
                found = self._read()
            except MarlaasError as error:
                self._forget()
                found = replace(self._last, now=self._clock(), outcomes={}, problem=str(error))
            build = llama_build(now=found.now)
            self._compiled = self._compiled or (build is not None and build.state == "compiling")
            self._last = replace(found, note=llama_note(build, found.now, watched=self._compiled))
            return self._last

    def close(self) -> None:
        """Close the connection for good; a late poll finds nothing new."""
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
        courses = self._courses = {task.id: self._course(reader, task) for task in tasks}
        return Snapshot(
            now=now,
            tasks=tasks,
            rewards={task: course.rewards for task, course in courses.items()},
            policy_rewards={(task, name): own for task, each in courses.items() for name, own in each.policies.items()},
            paces={task: course.pace for task, course in courses.items() if course.pace is not None},
            engine=engine,
            workers=tuple(reader.workers()),
            turns=reader.turn_rate(),
            parameters=base_size(engine.base) if engine is not None else None,
            question=question,
            answer=answer,
            outcomes=self._outcomes(reader),
        )

    def _forget(self) -> None:
        if self._reader is not None:
            self._reader.close()
        self._reader = self._seen = None
        self._courses.clear()

    def _course(self, reader: Reader, task: TaskRow) -> _Course:
        """Read again only if the task has made a step."""
        made = (task.step, *(policy.step for policy in task.policies))
        known = self._courses.get(task.id)
        if known is not None and known.made == made:
            return known
        policies = {name: tuple(reader.rewards(task.id, policy=name)) for name in task.trained}
        return _Course(made, tuple(reader.rewards(task.id)), policies, reader.pace(task.id))

    def _outcomes(self, reader: Reader) -> dict[int, str]:
        outcomes = reader.command_outcomes(self._expected) if self._expected else {}
        self._expected = tuple(command for command in self._expected if command not in outcomes)
        return outcomes


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
    asked: float
    """When it was asked for, in seconds of the snapshots' clock."""
    waiting: dict[int, int | None] = field(default_factory=dict)
    """Commands that the engine has not answered, with their tasks."""
    refused: list[str] = field(default_factory=list)
    written: bool = False
    """Whether the store has it; another process may lock the store for a while."""
    slow: bool = False
    """Whether the person has been shown that it waits."""
    unwanted: bool = False
    """Whether the person wants it undone as soon as it is done."""


class Sender:
    """Sends actions as command rows in a thread, and turns their outcomes into notices.

    All tasks of an action get one notice. The last action with an opposite can be undone.
    """

    def __init__(self, app: MarlaasApp, feed: Feed) -> None:
        self._app = app
        self._feed = feed
        self._now = 0.0
        self._acts: list[Act] = []
        self._last: Act | None = None

    def send(self, kind: str, tasks: Sequence[int] = (), done: str = "", **arguments: Any) -> None:
        """Write the commands of an action, one for each task; without tasks, one command."""
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
        """Tell of commands that the engine has answered, and of those that wait for long."""
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
        for refusal in act.refused[:_SHOWN]:
            self._app.say(refusal, bad=True)
        if len(act.refused) > _SHOWN:
            self._app.say(f"… and {len(act.refused) - _SHOWN} more were refused.", bad=True)

    def undo(self) -> None:
        """Undo the last action, or have it undone once the engine has answered it."""
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
