"""What views show: a snapshot of the home, the notices of now, what was read last."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from textual.widget import Widget

from marlaas.engine.store.rows import EngineRow, PaceRow, TaskRow, WorkerRow

from ...questions import Question
from ...text.tasks import liveness, queue_order

# Runs work in a thread for the newest request alone: one runs at a time, and requests in between are dropped.
#
# For work that takes long enough to be felt while every key press asks for it. Answers come back in the event loop.

Wish = TypeVar("Wish")
Answer = TypeVar("Answer")


class Latest(Generic[Wish, Answer]):
    """``work`` runs in a thread and must not raise; ``then`` gets its answer, as long as the widget is there."""

    def __init__(self, owner: Widget, work: Callable[[Wish], Answer], then: Callable[[Answer], None]) -> None:
        self._owner = owner
        self._work = work
        self._then = then
        self._wishes: list[Wish] = []
        self._busy = False

    def ask(self, wish: Wish) -> None:
        """Work on this as soon as the present work is done; earlier requests that still wait are dropped."""
        self._wishes[:] = [wish]
        if not self._busy:
            self._busy = True
            self._owner.run_worker(self._run())

    async def _run(self) -> None:
        try:
            while self._wishes:
                answer = await asyncio.to_thread(self._work, self._wishes.pop())
                if self._owner.is_attached and self._owner.is_running:  # what is being removed has lost some children
                    self._then(answer)
        finally:
            self._busy = False


# What the application tells a person in passing: a sentence that goes again by itself. Pure.

SHORTEST, LONGEST = 5.0, 20.0
"""Seconds that a notice stays at least and at most."""
_PACE = 15.0
"""Characters that people read in a second (Brysbaert 2019: 238 words a minute), with time to look there."""
MOST = 3
"""Notices that are shown at once: the newest."""


@dataclass(frozen=True)
class Notice:
    """One sentence."""

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


# The store at one moment, as every view gets it.


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
