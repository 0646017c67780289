"""The policies of a task while it runs: who stands where, who plays next, and what is held for as long as they play.

Shelves of the trained policies, versions of the others and the task's cast flow in; a ``Match`` for each play flows
out. Decides about versions alone, never about groups or steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager

from ...rollout import SamplerEndpoint
from ...spec import AgentMap
from ...store import Version
from ..serving.published import PublishedVersions
from .match import Match
from .opponent_pool import OpponentPool


class Participants:
    """Made at a task's start; ``frozen_policies`` and ``opponent_pool`` are given once they are known."""

    def __init__(self, cast: AgentMap, published_versions: Mapping[str, PublishedVersions]) -> None:
        self.cast = cast
        self._published_versions = published_versions
        self.frozen_policies: Mapping[str, Version] = {}
        """What is never trained: by the policy's name, or by the words of ``[eval.agents]``."""
        self.opponent_pool: Mapping[str, OpponentPool] = {}
        """Pools, by the policy's name."""
        self.hosts: Mapping[str, PublishedVersions] = {}
        """Where those are served that are not trained, by the same names."""

    def match(self, number: int, attempt: int) -> Match:
        """Who plays group ``number``: trained policies as they are served, of each pool one. Raises ``WorkerDied``."""
        drawn = {name: opponent_pool.draw(number, attempt) for name, opponent_pool in self.opponent_pool.items()}
        return Match(self.cast.agents, {**self.frozen_policies, **drawn, **self._current()})

    def examination(self, name: str, version: Version, opponents: Mapping[str, str], turns: int) -> Match:
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
        drawn = {pool: opponent_pool.draw(0, 0) for pool, opponent_pool in self.opponent_pool.items()}
        return Match(agents, {**self.frozen_policies, **drawn, **self._current(), name: version})

    def endpoints(self, match: Match, group: int) -> dict[str, SamplerEndpoint]:
        """Where everybody of a match is asked when a group of this number is played, by speaker."""
        published_versions = {**self.hosts, **self._published_versions}
        return {name: published_versions[name].endpoint(version, group) for name, version in match.versions.items()}

    @asynccontextmanager
    async def playing(self, match: Match) -> AsyncIterator[None]:
        """Keep the versions of a match served while the block runs, which for those of a pool may have to begin."""
        async with AsyncExitStack() as stack:
            for name, published in self._published_versions.items():  # before anything is waited for
                stack.enter_context(published.hold(match.versions[name]))
            for name, opponent_pool in self.opponent_pool.items():
                stack.enter_context(opponent_pool.hold(match.versions[name]))
            for name, opponent_pool in self.opponent_pool.items():
                await stack.enter_async_context(opponent_pool.lent(match.versions[name]))
            yield

    def _current(self) -> dict[str, Version]:
        return {name: published.now() for name, published in self._published_versions.items()}
