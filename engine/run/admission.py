"""Which group may begin: the rule that bounds staleness by construction, and its application.

Step k consumes exactly the groups kB … kB+B-1 and makes version k+1. A group that begins at version v is consumed by
step number // B, so its tokens are then number // B - v versions old; admitting only while that is at most
``max_staleness`` bounds every trained token, and no finished work is ever thrown away.

``Admitting`` begins a task's groups by number as soon as the rule of every policy that needs them allows it: first
those that an earlier run stored and did not consume, then new ones. It also waits for room for their episodes: a group
that begins later is played with a newer version. All policies of a task number their groups alike,
so a group that several need is played once.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from time import monotonic
from typing import Protocol

from ..rollout import EPISODES
from ..store import ExperienceTable
from ..training import ClosedGroup, close_group
from .background import Background
from .group_pool import GroupPool
from .producer import Producer, Wanting
from .rules import closing_rules


def may_begin(number: int, version: int, groups_per_step: int, max_staleness: int) -> bool:
    """Whether group ``number`` may begin while ``version`` is current."""
    return number < (max_staleness + version + 1) * groups_per_step


def has_room(members: int) -> bool:
    """Whether a task may begin a further group while so many members of its groups are to be played or are played.

    One place is enough: members begin one by one, and a group's last straggler holds no more than its own place.
    """
    return members < EPISODES


def step_groups(step: int, groups_per_step: int) -> range:
    """Numbers of the groups that optimizer step ``step`` (from 0) consumes."""
    return range(step * groups_per_step, (step + 1) * groups_per_step)


def staleness(number: int, version: int, groups_per_step: int) -> int:
    """How many versions old the tokens of group ``number`` are when they are trained on."""
    return number // groups_per_step - version


class Admitted(Wanting, Protocol):
    """What the admission of groups needs to know of a trained policy."""

    pool: GroupPool
    """Where its groups wait for their step."""
    first: int
    """Number of the first group that it has not consumed."""

    @property
    def end(self) -> int:
        """Number of the group after its last."""

    def needs(self, number: int) -> bool:
        """Whether it is to be trained on group ``number``."""

    def may_begin(self, number: int, draining: bool) -> bool:
        """Whether its bound on staleness lets group ``number`` begin."""

    def held_up(self, number: int, began: float) -> None:
        """Group ``number`` has waited since ``began``, a moment of ``monotonic``, for a later version, and no group was
        being played."""


class Admitting:
    """The admission of one task's groups."""

    def __init__(
        self,
        experience: ExperienceTable,
        policies: Sequence[Admitted],
        moved: asyncio.Event,
        draining: asyncio.Event,
    ) -> None:
        """Once ``draining`` is set, only groups begin that the steps under way need."""
        self._experience = experience
        self._policies = policies
        self._draining = draining
        self._stored: dict[str, set[int]] = {}
        self._stopped = False
        self._members = 0
        """Members of groups that were begun which are to be played, or are played."""
        self._moved = moved

    def stop(self) -> None:
        """Begin no further group."""
        self._stopped = True
        self._moved.set()

    async def run(self, producer: Producer, background: Background) -> None:
        """Begin every group that some policy needs and that is not stored; a failure is raised by the pools."""
        try:
            self._stored = {policy.name: self._take_up(policy) for policy in self._policies}
        except Exception as error:
            return self._fail(error)
        first, end = min(policy.first for policy in self._policies), max(policy.end for policy in self._policies)
        for number in range(first, end):
            await self._allowed(number)
            if self._wanting(number) and not self._stopped:
                await producer.room(number)
                await self._allowed(number)  # the engine may drain by now
            if self._stopped:
                return
            wanting = self._wanting(number)
            if wanting:
                self._more(wanting[0].spec.train.begun_members)
                background.produce(self._fill(producer, number, wanting))

    async def _allowed(self, number: int) -> None:
        """Wait until group ``number`` may begin, or none may any more."""
        while not self._stopped and self._waits(number):
            began, idle = monotonic(), not self._members
            self._moved.clear()
            await self._moved.wait()
            for policy in self._wanting(number) if idle else ():
                policy.held_up(number, began)

    def _wanting(self, number: int) -> tuple[Admitted, ...]:
        """The policies that are to be trained on a group that is not stored for them."""
        return tuple(p for p in self._policies if p.needs(number) and number not in self._stored[p.name])

    def _waits(self, number: int) -> bool:
        draining, wanting = self._draining.is_set(), self._wanting(number)
        if wanting and not has_room(self._members):
            return True
        return any(not policy.may_begin(number, draining) for policy in wanting)

    def _take_up(self, policy: Admitted) -> set[int]:
        """Put a policy's stored groups into its pool and return their numbers."""
        stored, rules = set(), closing_rules(policy.spec)
        for group in self._experience.waiting(policy.policy):
            closed = close_group(group, rules)
            if isinstance(closed, ClosedGroup) and group.number >= policy.first:
                policy.pool.put(closed)
                stored.add(group.number)
        return stored

    async def _fill(self, producer: Producer, number: int, wanting: Sequence[Admitted]) -> None:
        left = wanting[0].spec.train.begun_members

        def more(members: int) -> None:
            nonlocal left
            left += members
            self._more(members)

        try:
            pools = {policy.name: policy.pool for policy in wanting}
            closed = await producer.fill(number, wanting, more, lambda policy, group: pools.pop(policy).put(group))
            for policy, pool in pools.items():
                pool.put(closed[policy])
        except Exception as error:
            self._fail(error)
        finally:
            self._more(-left)

    def _more(self, members: int) -> None:
        """So many members more are to be played."""
        full = not has_room(self._members)
        self._members += members
        if full and has_room(self._members):
            self._moved.set()

    def _fail(self, error: Exception) -> None:
        for policy in self._policies:
            policy.pool.fail(error)
