"""Following tasks as lines of text: one line per change, about once a second, until they end.

Reads the store through a function, so that it can be driven without an engine and without a clock.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TypedDict

from marlaas.engine.errors import EngineUnreachable
from marlaas.engine.store import PolicyRow, TaskRow

from ..words.format import clip, clip_start, line, pad, score
from ..words.held_out import held_out, with_error
from ..words.learning import newest, state_text

HEARD_SECONDS = 10.0
"""Between two sentences about a task that only makes steps; one takes about this long to be read out."""
GRACE_SECONDS = 20.0
"""An engine may be silent this long (a restart, a busy disk) before following gives up."""


def progress_line(task: TaskRow) -> str:
    """A task in one line."""
    parts = [
        pad(_who(task, 36), 36),
        f"{state_text(task):<11}",
        "  ".join(_learned(own, task.steps, own.name if task.policies else "") for own in _learning(task)),
    ]
    found = newest(task)
    why = line(task.reason) or (found.headline if found else "")
    return "  ".join([*parts, why] if why else parts)


def sentence(task: TaskRow) -> str:
    """A task in one sentence of words, for ears as for eyes; what is not known yet is left out."""
    parts = [f"Task {task.id}, {line(f'{task.tenant}, {task.name}')}: {line(task.state)}"]
    for own in _learning(task):
        if isinstance(own, PolicyRow) and own.measured:
            parts.append(f"{line(own.name)} {'measured' if own.step else 'not measured yet'}")
        else:
            parts.append(f"{f'{line(own.name)} at ' if task.policies else ''}step {own.step} of {task.steps}")
        if own.reward is not None:
            parts.append(f"reward {score(own.reward)}")
        if own.basis is not None:
            parts.append(f"held-out score {held_out(own.score, own.basis)}")
    found = newest(task)
    wrong = f" Learning goes wrong: {found.headline}." if found else ""
    return ", ".join(parts) + "." + wrong + (f" Reason: {line(task.reason)}" if task.reason else "")


def milestone(task: TaskRow) -> tuple[object, ...]:
    """What differs when a task has come further than by a step."""
    return task.state, task.reason, task.score, *(policy.score for policy in task.policies)


def _learning(task: TaskRow) -> Sequence[TaskRow | PolicyRow]:
    """The rows that learn: the task, or each policy that it trains where it has several."""
    return [policy for policy in task.policies if policy.trained] or [task]


def _learned(own: TaskRow | PolicyRow, steps: int, name: str) -> str:
    who = f"{line(name)}: " if name else ""
    if isinstance(own, PolicyRow) and own.measured:
        return f"{who}held-out {with_error(own.score, own.basis)}" if own.step else f"{who}not measured yet"
    return f"{who}step {own.step:>3}/{steps}  reward {score(own.reward)}  held-out {with_error(own.score, own.basis)}"


def _who(task: TaskRow, width: int) -> str:
    text = line(f"{task.tenant}/{task.name}")
    return clip_start(text, width) if task.family else clip(text, width)


class Ways(TypedDict, total=False):
    """How a ``Follower`` reports."""

    words: Callable[[TaskRow], str]
    rest: float


def ways(plain: bool) -> Ways:
    """How tasks are followed: by eye, each change in columns; by ear, in sentences that leave time to hear them."""
    return {"words": sentence, "rest": HEARD_SECONDS} if plain else {"words": progress_line}


@dataclass
class Follower:
    """Polls tasks and says what changed."""

    read: Callable[[], Sequence[TaskRow]]
    """The tasks to follow, as they are now."""
    alive: Callable[[], bool]
    """Whether an engine serves them."""
    say: Callable[[str], None]
    paused_ends: bool = False
    """Whether any paused task counts as ended, not only one that paused itself: nobody is there to resume it."""
    words: Callable[[TaskRow], str] = progress_line
    differs_by: Callable[[TaskRow], object] | None = None
    """A task is reported when this value changes; by default when its words do."""
    rest: float = 0.0
    """Seconds between two reports of a task that has only made steps meanwhile."""
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    _said: dict[int, object] = field(default_factory=dict)
    _last: dict[int, tuple[float, object]] = field(default_factory=dict)
    """When a task was last reported, and its milestone then."""

    def said(self, task: int) -> bool:
        """Whether a task has been reported."""
        return task in self._said

    def poll(self) -> list[TaskRow]:
        """Read once, say what changed, and return the tasks."""
        tasks = list(self.read())
        for task in tasks:
            now = (self.differs_by or self.words)(task)
            if (task.id not in self._said or self._said[task.id] != now) and not self._rests(task):
                self._said[task.id], self._last[task.id] = now, (self.clock(), milestone(task))
                self.say(self.words(task))
        return tasks

    def _rests(self, task: TaskRow) -> bool:
        """Whether it was reported a moment ago, and there is nothing but steps to tell."""
        when, before = self._last.get(task.id, (-math.inf, None))
        return self.clock() - when < self.rest and before == milestone(task)

    def follow(self, timeout: float | None = None, interval: float = 1.0) -> list[TaskRow]:
        """Follow until all tasks have ended, or until the time is over; returns the tasks as they are then."""
        begun = heard = self.clock()
        while True:
            tasks = self.poll()
            if all(self._ended(task) for task in tasks):
                return tasks
            now = self.clock()
            if timeout is not None and now - begun >= timeout:
                return tasks
            if self.alive():
                heard = now
            elif now - heard > GRACE_SECONDS:
                raise EngineUnreachable(
                    "The engine has stopped while tasks are unfinished.",
                    "`marlaas engine start` goes on with them; `marlaas logs` may say why.",
                )
            self.sleep(interval)

    def _ended(self, task: TaskRow) -> bool:
        return not task.unfinished or task.stuck or (self.paused_ends and task.state == "paused")
