"""All policies that play in a running task: who acts as which agent in each play, with which version, served where.

Makes a ``Match`` for each play. Decides about versions alone, never about groups or steps.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

from ...rollout import Replicas, SamplerEndpoint
from ...spec import AgentMap
from ...store import Speaking, Version
from ..serving.published import PublishedVersions
from .match import Match
from .opponent_pool import OpponentPool


@dataclass(frozen=True)
class Opponents:
    """All that play in one task; ``frozen_policies`` and ``opponent_pool`` are set once they are known."""

    frozen: Mapping[str, Version] = field(default_factory=dict)
    """What is never trained: by the policy's name, or by the words of ``[eval.agents]``."""
    pools: Mapping[str, OpponentPool] = field(default_factory=dict)
    """By the policy's name."""
    hosts: Mapping[str, PublishedVersions] = field(default_factory=dict)
    """Where they are served, by the same names."""

    def versions_of(self, policy: str) -> Callable[[Sequence[int]], Set[int]]:
        """Which of a trained policy's versions pools need, so that their files stay."""
        pools = [pool for pool in self.pools.values() if pool.policy == policy]
        return lambda numbers: set().union(*(pool.needs(numbers) for pool in pools))


class Participants:
    """Of one task and one incarnation of the workers."""

    def __init__(
        self,
        agent_map: AgentMap,
        published_versions: Mapping[str, PublishedVersions],
        opponents: Opponents,
        kept: Callable[[str], Sequence[Version]] = lambda policy: (),
    ) -> None:
        """``published_versions`` are those of the trained policies, by name; ``kept`` lists the versions of one of them
        whose files are on the disk."""
        self.agent_map = agent_map
        self.kept = kept
        self.opponents = opponents
        self._published_versions = published_versions

    def agents_of(self, policy: str) -> tuple[str, ...]:
        """The agents that a policy acts as in training."""
        return tuple(agent for agent, name in self.agent_map.agents.items() if name == policy)

    def match(self, number: int, attempt: int) -> Match:
        """Who plays group ``number``: trained policies as they are served, of each pool one. Raises ``WorkerDied``."""
        drawn = {name: opponent_pool.draw(number, attempt) for name, opponent_pool in self.opponents.pools.items()}
        return Match(self.agent_map.agents, {**self.opponents.frozen, **drawn, **self._current()})

    def again(self, speaking: Mapping[str, Speaking]) -> Match | None:
        """The match of a play that an earlier run began, by number and checksum of the versions that spoke in it.

        None where one of them is void or not on the disk any more: then the play cannot go on.
        """
        versions = {name: self._known(name, *wanted) for name, wanted in speaking.items()}
        if set(versions) != {*self.opponents.frozen, *self.opponents.pools, *self._published_versions}:
            return None
        there = {name: version for name, version in versions.items() if version is not None}
        return Match(self.agent_map.agents, there) if len(there) == len(versions) else None

    def _known(self, name: str, number: int, checksum: str) -> Version | None:
        """The version of a policy that a match names; None where it is unknown."""
        if name in self.opponents.frozen:
            known = [self.opponents.frozen[name]]
        elif name in self.opponents.pools:
            known = [*self.opponents.pools[name].kept()]
        else:
            known = [self._published_versions[name].now(), *self.kept(name)]
        return next((one for one in known if (one.number, one.checksum) == (number, checksum)), None)

    def examination(self, name: str, version: Version, opponents: Mapping[str, str], turns: int) -> Match:
        """Who plays a held-out prompt on which ``version`` of the policy ``name`` is measured.

        ``opponents`` says who acts as which agents instead of those who do in training; where no agent would be left
        to the policy, it keeps its own. Then each agent gets the policy of the agent ``turns`` places on, in a ring.
        """
        own = dict.fromkeys(self.agents_of(name), name)
        agents = {**self.agent_map.agents, **opponents}
        if own and name not in agents.values():
            agents |= own
        if agents and turns:
            names = list(agents)
            agents = {agent: agents[names[(place + turns) % len(names)]] for place, agent in enumerate(names)}
        drawn = {pool: opponent_pool.draw(0, 0) for pool, opponent_pool in self.opponents.pools.items()}
        return Match(agents, {**self.opponents.frozen, **drawn, **self._current(), name: version})

    def replicas(self, match: Match) -> dict[str, Replicas]:
        """The samplers of each policy of a match, by policy; all members of a group are to have the same ones."""
        published = {**self.opponents.hosts, **self._published_versions}
        return {name: Replicas(published[name].replicas(version)) for name, version in match.versions.items()}

    def endpoints(self, policy: str) -> list[SamplerEndpoint]:
        """The samplers that serve the current version of a trained policy. Raises ``WorkerDied`` where none does."""
        published = self._published_versions[policy]
        return published.replicas(published.now())

    @asynccontextmanager
    async def playing(self, match: Match) -> AsyncIterator[None]:
        """Keep the versions of a match served while the block runs; those of a pool, or of a play that an earlier run
        began, may have to be loaded first."""
        async with AsyncExitStack() as stack:
            hosts = {**self._published_versions, **{name: self.opponents.hosts[name] for name in self.opponents.pools}}
            for name, published in hosts.items():  # before the first await: a file may not go before it is loaded
                stack.enter_context(published.hold(match.versions[name]))
            for name, published in hosts.items():
                if not published.serves(match.versions[name]):
                    await stack.enter_async_context(published.lent(match.versions[name]))
            yield

    def _current(self) -> dict[str, Version]:
        return {name: published.now() for name, published in self._published_versions.items()}
