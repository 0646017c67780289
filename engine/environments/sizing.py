"""How many processes a version of a plugin gets, as its measured work asks for. Pure.

RollArt (arXiv 2512.22560) runs stateless reward work on workers of its own, as many as it needs at the time. Here a
further process costs an import, so it is started once the time in which it would have had something to do has added up
to that cost: the rule for renting or buying (Karlin, Manasse, Rudolph and Sleator, "Competitive snoopy caching",
Algorithmica 3, 1988), which never pays more than twice what the best decision in hindsight would have.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from .budget import PER_CORE
from .process.load import Load

EPISODES = 512
"""Most live episodes of one process, unless its author says otherwise: twice what one task has at a time."""
BUSY = 0.8
"""Share of a core from which a process counts as busy: the rest are the waits for its messages."""
FILLED = 0.6
"""Share of a core that the processes are to have after some have ended: less than ``BUSY``, or they would come back."""
LATE = 0.25
"""Seconds of delay from which the loop of a process counts as late, though it may not compute: what blocks it waits."""
ENOUGH = 0.5
"""Seconds per second, of all processes, in which code keeps their loops, from which it is known what it does there."""
LEAST_PRICE = 1.0
"""Least seconds of work for which a process is started: what was seen in less may be chance."""
REST = 60.0
"""Seconds for which fewer processes must have been enough before one ends."""


@dataclass(frozen=True)
class Workers:
    """How many processes of each kind a version may have at the same time."""

    least: int = 1
    """While it is played."""
    most: int = 1


@dataclass(frozen=True)
class Work:
    """What the processes of a version do at one moment."""

    live: tuple[int, ...]
    """Episodes under way in each process."""
    loads: tuple[Load, ...]
    """What each process said last."""
    waiting: int = 0
    """Episodes that wait for a place in a process."""

    @property
    def pressed(self) -> bool:
        """Whether a further process would have something to do."""
        if self.waiting:
            return True
        if not self.live or min(self.live) < 2:
            return False
        busy = sum(min(1.0, load.busy) for load in self.loads) / len(self.loads)
        return busy >= BUSY or min(load.late for load in self.loads) >= LATE

    @property
    def weight(self) -> float | None:
        """Share of a core that each process needs while its code keeps its loop; None where too little of that is seen.

        Code that waits there, for a database or a model elsewhere, may have more processes than there are cores. To
        wait for a core, or for a program that computes, is no such waiting.
        """
        busy, asleep = sum(load.busy for load in self.loads), sum(load.asleep for load in self.loads)
        return max(1 / PER_CORE, busy / (busy + asleep)) if busy + asleep >= ENOUGH else None

    def needed(self, episodes: int, most: int | None = None) -> int:
        """Processes that would do, with at most so many episodes each; ``most``: of which more gain nothing while they
        are pressed, since what they do there has changed."""
        if most is not None and self.pressed and len(self.live) > most:
            return most
        if any(load.late >= LATE for load in self.loads):
            return len(self.live)
        kept = sum(load.busy + load.asleep for load in self.loads)
        return max(1, math.ceil(kept / FILLED), math.ceil((sum(self.live) + self.waiting) / episodes))


@dataclass(frozen=True)
class Account:
    """What speaks for more processes, and what for fewer, in seconds."""

    pressed: float = 0.0
    """In which a further one would have had something to do, less those in which it would not; ``REST`` at most."""
    slack: float = 0.0
    """Since when fewer would do."""

    def after(self, work: Work, seconds: float, episodes: int, most: int | None = None) -> Account:
        """The account after ``seconds`` of such work; ``most`` as in ``wanted``."""
        pressed = self.pressed + (seconds if work.pressed else -seconds)
        slack = self.slack + seconds if work.needed(episodes, most) < len(work.live) else 0.0
        return Account(min(REST, max(0.0, pressed)), slack)


def wanted(account: Account, work: Work, workers: Workers, episodes: int, price: float, spare: int) -> int:
    """How many processes there should be now.

    ``episodes``: most of one process; ``price``: seconds that starting one takes; ``spare``: further processes for
    which the machine has room. Where it grows, it doubles at most, and no process is without an episode.
    """
    now = len(work.live)
    if now < workers.least:
        return workers.least
    if account.slack >= REST:
        return min(now, max(workers.least, work.needed(episodes, workers.most)))
    if account.pressed >= max(LEAST_PRICE, min(price, REST)):
        most = min(workers.most, now + spare, 2 * now, sum(work.live) + work.waiting)
        return max(now, most)
    return now
