"""One attempt at a group while it is played: what is played for whom, and what has become of it."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

from ...spec import TaskSpec
from ...store import OpenPlay
from ...training import ClosedGroup
from ...trajectories import Episode, Group
from ..environment import Component
from ..selfplay import Match
from .early_groups import EarlyGroups
from .members import Member
from .open_plays import Keeper
from .policy_groups import Play, part_of


class Wanting(Protocol):
    """What the producer needs to know of a trained policy."""

    @property
    def name(self) -> str:
        """Its name in the task."""

    @property
    def policy(self) -> int:
        """Its number in the store."""

    @property
    def spec(self) -> TaskSpec:
        """The task as this policy sees it."""

    @property
    def oldest(self) -> int:
        """Number of the oldest version whose groups its next step may consume."""

    @property
    def attempts(self) -> set[Attempt]:
        """Those that are being played for it."""


class Put(Protocol):
    """Takes a group that has closed."""

    def __call__(self, policy: str, closed: ClosedGroup, /) -> None:
        """``policy``: the name of the policy that it is for."""


@dataclass(frozen=True)
class Place:
    """Which attempt it is, at which group, on which instance."""

    number: int
    attempt: int
    drawn: int
    """Index of the instance."""
    component: Component
    environment_version: str


@dataclass(frozen=True)
class Tally:
    """What has become of attempts at a group so far; see ``Group``."""

    replaced: int = 0
    lost: int = 0
    replayed: int = 0

    def after(self, members: Sequence[Member]) -> Tally:
        """The same after a further attempt."""
        lost, replayed = sum(one.lost for one in members), sum(len(one.before) for one in members)
        return replace(self, lost=self.lost + lost, replayed=self.replayed + replayed)


@dataclass(eq=False)
class Attempt:
    """An attempt at a group while it is played."""

    place: Place
    match: Match
    wanting: Sequence[Wanting]
    """Those that it is played for."""
    tally: Tally
    """Before it."""
    early: EarlyGroups
    keeper: Keeper
    open: OpenPlay
    """The same, as the store keeps it for the next run."""
    put: Put
    closed: dict[str, ClosedGroup] = field(default_factory=dict)
    """By policy, the groups that closed early."""
    play: int | None = None
    """The number of the play, once a group of it is stored."""
    over: asyncio.Event = field(default_factory=asyncio.Event)
    """Set once all groups are closed or too old: nobody learns from what the members still do."""

    @property
    def left(self) -> list[Wanting]:
        """Those that have no group yet."""
        return [policy for policy in self.wanting if policy.name not in self.closed]

    @property
    def stale(self) -> bool:
        """Whether a group that is left would be too old to be trained on."""
        return any(self.match.versions[policy.name].number < policy.oldest for policy in self.left)

    def part(self, policy: Wanting, episodes: Sequence[Episode], tally: Tally) -> Group:
        """The group of one policy."""
        place, name = self.place, policy.name
        counts = tally.replaced, tally.lost, tally.replayed
        play = Play(
            place.number, place.drawn, place.environment_version, tuple(episodes), place.component.name, *counts
        )
        return part_of(play, self.match.versions[name].number, self.match.agents_of(name))
