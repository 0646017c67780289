"""The policies of a task while it runs: who stands where, who plays next, and what is held for as long as they play.

Shelves of the trained policies, versions of the others and the task's cast flow in; a ``Lineup`` for each play flows
out. Decides about versions alone, never about groups or steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from ...rollout.endpoint import Station
from ...spec.agents import Cast
from ...store.versions import Version
from ..serving.published import Shelf
from .match import Lineup
from .opponent_pool import Rivals


class Company:
    """Made at a task's start; ``guests`` and ``rivals`` are given once they are known."""

    def __init__(self, cast: Cast, shelves: Mapping[str, Shelf]) -> None:
        self.cast = cast
        self._shelves = shelves
        self.guests: Mapping[str, Version] = {}
        """What is never trained: by the policy's name, or by the words of ``[eval.agents]``."""
        self.rivals: Mapping[str, Rivals] = {}
        """Pools, by the policy's name."""
        self.hosts: Mapping[str, Shelf] = {}
        """Where those are served that are not trained, by the same names."""

    def lineup(self, number: int, attempt: int) -> Lineup:
        """Who plays group ``number``: trained policies as they are served, of each pool one. Raises ``WorkerDied``."""
        drawn = {name: rivals.draw(number, attempt) for name, rivals in self.rivals.items()}
        return Lineup(self.cast.agents, {**self.guests, **drawn, **self._current()})

    def examination(self, name: str, version: Version, opponents: Mapping[str, str], turns: int) -> Lineup:
        """Who plays a held-out prompt on which ``version`` of the policy ``name`` is measured.

        ``opponents`` says who speaks for agents that do not play as in training, but that a policy of which nothing
        would be left keeps its own; all change places ``turns`` times.
        """
        own = {agent: policy for agent, policy in self.cast.agents.items() if policy == name}
        agents = {**self.cast.agents, **opponents}
        if own and name not in agents.values():
            agents |= own
        if agents and turns:
            seats = list(agents)
            agents = {seat: agents[seats[(place + turns) % len(seats)]] for place, seat in enumerate(seats)}
        drawn = {pool: rivals.draw(0, 0) for pool, rivals in self.rivals.items()}
        return Lineup(agents, {**self.guests, **drawn, **self._current(), name: version})

    def stations(self, lineup: Lineup, group: int) -> dict[str, Station]:
        """Where everybody of a lineup is asked when a group of this number is played, by speaker."""
        shelves = {**self.hosts, **self._shelves}
        return {name: shelves[name].station(version, group) for name, version in lineup.versions.items()}

    @asynccontextmanager
    async def playing(self, lineup: Lineup) -> AsyncIterator[None]:
        """Keep the versions of a lineup served while the block runs, which for those of a pool may have to begin."""
        async with AsyncExitStack() as stack:
            for name, shelf in self._shelves.items():  # before anything is waited for
                stack.enter_context(shelf.hold(lineup.versions[name]))
            for name, rivals in self.rivals.items():
                stack.enter_context(rivals.hold(lineup.versions[name]))
            for name, rivals in self.rivals.items():
                await stack.enter_async_context(rivals.lent(lineup.versions[name]))
            yield

    def _current(self) -> dict[str, Version]:
        return {name: shelf.now() for name, shelf in self._shelves.items()}
