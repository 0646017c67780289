"""Sends actions as command rows of the store, and reports what became of them.

All tasks of an action get one notice. The last action with an opposite can be undone.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

from textual.app import App
from textual.message import Message

from marlaas.engine.errors import MarlaasError
from marlaas.engine.store import command, command_all
from marlaas.engine.submission import PAST

from ..context.notices import Notice
from ..words.tasks import tasks_named
from .feed import Feed

UNDO = {"pause": "resume", "resume": "pause", "cancel": "retry"}
"""The command that undoes another one; a retry cannot be undone, because the new attempt has begun."""
_PATIENCE = 3.0
"""Seconds after which a person is told that an action still waits."""
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
