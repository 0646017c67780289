"""Begins a policy's groups, by number, as soon as the bound on staleness allows it.

The version that is served flows in, groups flow into the pool: those of an earlier run that were stored and not
consumed, then those that the producer fills. Knows nothing of steps being made.
"""

from __future__ import annotations

import asyncio

from ..spec import TaskSpec
from ..store.experience import ExperienceTable
from ..training.advantages import ClosedGroup, ClosingRules, close_group
from .admission import may_begin
from .background import Background
from .pool import GroupPool
from .producer import Producer
from .shelf import Shelf


class Admitting:
    """The admission of one policy's groups."""

    def __init__(
        self,
        experience: ExperienceTable,
        policy: int,
        spec: TaskSpec,
        rules: ClosingRules,
        shelf: Shelf,
        pool: GroupPool,
        draining: asyncio.Event,
    ) -> None:
        """Once ``draining`` is set only groups begin that the step under way needs: as if no staleness were allowed."""
        self._experience = experience
        self._policy = policy
        self._spec = spec
        self._rules = rules
        self._shelf = shelf
        self._pool = pool
        self._draining = draining
        self._stopped = False
        self._moved = asyncio.Event()

    def moved(self) -> None:
        """Another version is served: look again at what may begin."""
        self._moved.set()

    def stop(self) -> None:
        """Begin no further group."""
        self._stopped = True
        self._moved.set()

    async def run(self, producer: Producer, version: int, background: Background) -> None:
        """Begin every group from ``version`` on; stored ones need no second run. Failures end up in the pool."""
        train = self._spec.train
        first = version * train.groups_per_step
        try:
            stored = self._take_up(first)
        except Exception as error:
            return self._pool.fail(error)
        for number in range(first, self._spec.steps * train.groups_per_step):
            if number in stored:
                continue
            while not (self._stopped or self._may_begin(number)):
                self._moved.clear()
                await self._moved.wait()
            if self._stopped:
                return
            background.produce(self._fill(producer, number))

    def _take_up(self, first: int) -> set[int]:
        """Put stored groups into the pool and return their numbers."""
        stored = set()
        for group in self._experience.waiting(self._policy):
            closed = close_group(group, self._rules)
            if isinstance(closed, ClosedGroup) and group.number >= first:
                self._pool.put(closed)
                stored.add(group.number)
        return stored

    async def _fill(self, producer: Producer, number: int) -> None:
        try:
            self._pool.put(await producer.fill(number))
        except Exception as error:
            self._pool.fail(error)

    def _may_begin(self, number: int) -> bool:
        train, version = self._spec.train, self._shelf.current.number if self._shelf.current else 0
        staleness = 0 if self._draining.is_set() else train.max_staleness
        return may_begin(number, version, train.groups_per_step, staleness)
