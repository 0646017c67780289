"""What the checks know of the environment that they check, and how much time they may take."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any, Protocol, TypeVar

from marlaas.plugins.messages import Answer

from ...trajectories import Split
from ..probe import PATIENCE
from ..process.wire import Watched
from ..protocol import EpisodeOutcome, EpisodeSpec

# How much time a check may take, and how much it leaves to others.

Item = TypeVar("Item")

LEAST = 2
"""Items of each part that are played even if no time is left."""


class Pace:
    """Counts the time since it was made."""

    def __init__(self, seconds: float, pause: float = 0.0, clock: Callable[[], float] = time.monotonic) -> None:
        """``pause``: seconds that are left to others after each item."""
        self.clock = clock
        self._seconds = seconds
        self._pause = pause
        self._began = clock()

    @property
    def left(self) -> float:
        """Seconds that are left of all the time; at least a tenth of it, for what comes last."""
        return max(0.1 * self._seconds, self._seconds - (self.clock() - self._began))

    async def take(self, items: Iterable[Item], share: float) -> AsyncIterator[Item]:
        """The items, until ``share`` of all the time is used up."""
        for number, item in enumerate(items):
            if number >= LEAST and self.clock() - self._began > share * self._seconds:
                return
            yield item
            await asyncio.sleep(self._pause)


# What the checks know of the environment that they check: how to play it, and how to begin in a fresh process.


class Subject(Protocol):
    """An environment under a complete configuration."""

    @property
    def config(self) -> dict[str, Any]:
        """Its parameters with defaults filled in."""

    @property
    def timeout(self) -> float:
        """Seconds that an episode may take, without the model's."""

    @property
    def agents(self) -> tuple[str, ...]:
        """The agents that it declares; empty where it declares none."""

    @property
    def ranked(self) -> bool:
        """Whether a ranking of its groups replaces its own rewards in training."""

    @property
    def name(self) -> str:
        """Its name, without its plugin's."""

    @property
    def movable(self) -> bool:
        """Whether its author could move its grading into a score function: the code is theirs, and there is none."""

    async def play(self, spec: EpisodeSpec, answer: Answer) -> EpisodeOutcome:
        """Play one episode. Raises what ``answer`` raises; what the plugin does wrong is in the outcome."""

    async def watch(self) -> None:
        """Begin to look at what keeps the event loop of its process busy."""

    async def watched(self) -> Watched:
        """End that, and return what was seen."""

    async def renew(self) -> float:
        """Start a fresh process; returns the seconds that this took. Raises ``BrokenPlugin``."""


def limit_of(subject: Subject) -> float:
    """Seconds that an episode may take while it is checked, without the model's."""
    return min(PATIENCE, subject.timeout)


def instance(subject: Subject, split: Split, index: int, member: int = 0) -> EpisodeSpec:
    """An episode of the run with seed 0."""
    return EpisodeSpec(split, index, seed=0, member=member, config=subject.config, timeout=limit_of(subject))
