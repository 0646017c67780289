"""Assigns agents to trained policies, frozen ones and earlier versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from itertools import count
from math import exp
from pathlib import Path
from random import Random
from statistics import median

from ..adapters.export import read_peft_folder
from ..adapters.statefile import begin, checksum, is_there, write_blank
from ..errors import AdapterError, ConfigError
from ..machine.services import Services
from ..rollout.conversation import SamplingParameters
from ..rollout.episodes import Role, Roles
from ..rollout.slots import Replicas, SamplerEndpoint
from ..samplers.sampling import WHOLE, Truncation
from ..samplers.seeds import noise_seed
from ..spec.automatic import as_number
from ..spec.rules import inside
from ..spec.task import BASE, ONLY, AgentMap, NamedPolicySpec, SamplingSpec, TaskSpec, start_folder
from ..store.experience import Speaking
from ..store.versions import Version
from .opening import TrainedPolicy
from .publishing import PublishedVersions


@dataclass(frozen=True)
class Match:
    """Each agent's policy and version in one attempt."""

    agents: Mapping[str, str]
    """Each agent's policy; empty: one policy acts as all."""
    versions: Mapping[str, Version]
    """By policy, or by a version's text in the task file."""

    def policy_of(self, agent: str) -> str:
        """Raises ``ConfigError`` for an agent not in the task file."""
        if not self.agents:
            return ONLY
        if agent not in self.agents:
            raise ConfigError(
                f"no policy acts as its agent {agent!r}",
                f"Write `{agent} = POLICY` under [agents]; named there are {', '.join(self.agents)}.",
            )
        return self.agents[agent]

    def agents_of(self, policy: str) -> frozenset[str] | None:
        return frozenset(agent for agent, name in self.agents.items() if name == policy) if self.agents else None

    def roles(
        self,
        replicas: Mapping[str, Replicas],
        sampling: SamplingSpec,
        temperature: float,
        seed: int,
        truncation: Truncation = WHOLE,
    ) -> Roles:
        def role(agent: str) -> Role:
            policy = self.policy_of(agent)
            version = self.versions[policy]
            parameters = SamplingParameters(
                version=version.name,
                number=version.number,
                temperature=temperature,
                max_tokens=as_number(sampling.max_tokens),
                max_episode_tokens=as_number(sampling.max_episode_tokens),
                seed=seed,
                thinking=sampling.thinking,
                truncation=truncation,
            )
            return Role(parameters, replicas[policy], policy)

        return role


# Mostly young opponents keep self-play from running in circles (Bansal et al., arXiv 1710.03748, section 4.2).
# Preferring strong ones is prioritised fictitious self-play (Vinyals et al., Nature 575, 2019).

HALF = 0.5
"""``pick = "recent"``: frequency relative to the next younger version."""
SHARPNESS = 4.0
"""``pick = "score"``: a quarter of the pool's range better is e times as frequent."""


def in_pool(numbers: Sequence[int], policy: NamedPolicySpec) -> tuple[int, ...]:
    """A pool's versions, oldest first: every ``every``-th, the ``size`` youngest."""
    entered = sorted(number for number in numbers if number % policy.every == 0)
    return tuple(entered[-policy.size :])


def weights(numbers: Sequence[int], pick: str, scores: Mapping[int, float]) -> list[float]:
    """Probabilities, oldest first; they sum to 1.

    Versions without a score count as the median.
    """
    if pick == "recent":
        raw = [HALF**age for age in range(len(numbers) - 1, -1, -1)]
    elif pick == "score" and scores:
        known = [scores[number] for number in numbers if number in scores] or [0.0]
        least, width = min(known), (max(known) - min(known)) or 1.0
        middle = median(known)
        raw = [exp(SHARPNESS * (scores.get(number, middle) - least) / width) for number in numbers]
    else:
        raw = [1.0] * len(numbers)
    total = sum(raw)
    return [one / total for one in raw]


class OpponentPool:
    """One pool of a running task."""

    def __init__(
        self,
        name: str,
        policy: NamedPolicySpec,
        seed: int,
        kept: Callable[[], Sequence[Version]],
        scores: Callable[[], Mapping[int, float]],
    ) -> None:
        """``kept`` lists versions with files."""
        self._name = name
        self._policy = policy
        self._seed = seed
        self.kept = kept
        self._scores = scores

    @property
    def policy(self) -> str:
        return self._policy.pool

    def needs(self, numbers: Sequence[int]) -> Set[int]:
        return set(in_pool(numbers, self._policy))

    def draw(self, number: int, attempt: int) -> Version:
        """Raises ``AdapterError`` if the policy has no version left."""
        versions = {version.number: version for version in reversed(self.kept())}
        pool = in_pool(sorted(versions), self._policy) or tuple(sorted(versions)[-1:])
        if not pool:
            raise AdapterError(
                f"The pool {self._name!r} is empty: no version of {self._policy.pool!r} is on the disk.",
                "They were deleted; the task can go on once it has made others.",
            )
        odds = weights(pool, self._policy.pick, self._scores())
        chance = Random(noise_seed(self._seed, "pool", self._name, number, attempt))
        return versions[chance.choices(pool, odds)[0]]


@dataclass(frozen=True)
class Opponents:
    """All that act in one task."""

    frozen: Mapping[str, Version] = field(default_factory=dict)
    """Never trained; by policy, or text of ``[eval.agents]``."""
    pools: Mapping[str, OpponentPool] = field(default_factory=dict)
    hosts: Mapping[str, PublishedVersions] = field(default_factory=dict)

    def versions_of(self, policy: str) -> Callable[[Sequence[int]], Set[int]]:
        """Versions in pools; their files stay."""
        pools = [pool for pool in self.pools.values() if pool.policy == policy]
        return lambda numbers: set().union(*(pool.needs(numbers) for pool in pools))


class Participants:
    """One task's policies with one generation of the workers."""

    def __init__(
        self,
        agent_map: AgentMap,
        published_versions: Mapping[str, PublishedVersions],
        opponents: Opponents,
        kept: Callable[[str], Sequence[Version]] = lambda policy: (),
    ) -> None:
        """``kept`` lists a policy's versions with files."""
        self.agent_map = agent_map
        self.kept = kept
        self.opponents = opponents
        self._published_versions = published_versions

    def agents_of(self, policy: str) -> tuple[str, ...]:
        return tuple(agent for agent, name in self.agent_map.agents.items() if name == policy)

    def match(self, number: int, attempt: int) -> Match:
        """Raises ``WorkerDied``."""
        drawn = {name: opponent_pool.draw(number, attempt) for name, opponent_pool in self.opponents.pools.items()}
        return Match(self.agent_map.agents, {**self.opponents.frozen, **drawn, **self._current()})

    def again(self, speaking: Mapping[str, Speaking]) -> Match | None:
        """None if a version is void or not on the disk."""
        versions = {name: self._known(name, *wanted) for name, wanted in speaking.items()}
        if set(versions) != {*self.opponents.frozen, *self.opponents.pools, *self._published_versions}:
            return None
        there = {name: version for name, version in versions.items() if version is not None}
        return Match(self.agent_map.agents, there) if len(there) == len(versions) else None

    def _known(self, name: str, number: int, checksum: str) -> Version | None:
        if name in self.opponents.frozen:
            known = [self.opponents.frozen[name]]
        elif name in self.opponents.pools:
            known = [*self.opponents.pools[name].kept()]
        else:
            known = [self._published_versions[name].now(), *self.kept(name)]
        return next((one for one in known if (one.number, one.checksum) == (number, checksum)), None)

    def examination(self, name: str, version: Version, opponents: Mapping[str, str], turns: int) -> Match:
        """The match that measures ``version`` of policy ``name``.

        ``opponents`` reassigns agents; a policy left without an agent keeps its own. Then each agent gets the policy of
        the agent ``turns`` places later, in a ring.
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
        """By policy; equal for all samples of a group."""
        published = {**self.opponents.hosts, **self._published_versions}
        return {name: Replicas(published[name].replicas(version)) for name, version in match.versions.items()}

    def endpoints(self, policy: str) -> list[SamplerEndpoint]:
        """Raises ``WorkerDied`` if there is none."""
        published = self._published_versions[policy]
        return published.replicas(published.now())

    @asynccontextmanager
    async def playing(self, match: Match) -> AsyncIterator[None]:
        """Served during the block; old versions may be loaded first."""
        async with AsyncExitStack() as stack:
            hosts = {**self._published_versions, **{name: self.opponents.hosts[name] for name in self.opponents.pools}}
            for name, published in hosts.items():  # before the first await: a file must not go before it is loaded
                stack.enter_context(published.hold(match.versions[name]))
            for name, published in hosts.items():
                if not published.serves(match.versions[name]):
                    await stack.enter_async_context(published.lent(match.versions[name]))
            yield

    def _current(self) -> dict[str, Version]:
        return {name: published.now() for name, published in self._published_versions.items()}


class FrozenPolicies:
    """One task's untrained policies: earlier versions, the bare base, an evaluation's versions."""

    def __init__(
        self, services: Services, task: int, spec: TaskSpec, policies: Sequence[TrainedPolicy], kind: str = "frozen"
    ) -> None:
        """``kind``: two holders of one version must not share a served name."""
        self._kind = kind
        self._services = services
        self._task = task
        self._spec = spec
        self._policies = {policy.name: policy for policy in policies}
        self._published = PublishedVersions(services.endpoints)
        self._made: list[Path] = []
        self._numbers = count()

    async def enter(self, stack: AsyncExitStack) -> Opponents:
        """Serve all until ``stack`` is left. Raises ``AdapterError`` for a lost one."""
        frozen = {}
        for name, words in self._frozen().items():
            frozen[name] = await self.version(words)
            shares = self._services.router.shares(self._task, name)
            await stack.enter_async_context(self._published.lent(frozen[name], shares))
        pools, hosts = {}, dict.fromkeys(frozen, self._published)
        for name, policy in self._spec.policies.items():
            if policy.pool:
                own = self._policies[policy.pool]
                pools[name] = OpponentPool(name, policy, self._spec.train.seed, self._kept(own), self._scores(own))
                hosts[name] = own.published
        return Opponents(frozen, pools, hosts)

    async def leave(self) -> None:
        await asyncio.gather(self._published.clear(), return_exceptions=True)
        for path in self._made:
            with suppress(OSError):
                path.unlink()

    def _frozen(self) -> dict[str, str]:
        frozen = {name: policy.frozen for name, policy in self._spec.policies.items() if policy.frozen}
        others = (words for words in self._spec.eval.agents.values() if words not in self._spec.policies)
        return frozen | {words: words for words in others}

    async def version(self, words: str) -> Version:
        """Raises ``AdapterError`` for a lost one."""
        own = inside(words, self._spec)
        if words == BASE and not self._policies:
            return await self._bare()
        if words == BASE or own is not None:
            policy = self._policies[own] if own is not None else next(iter(self._policies.values()))
            first = self._services.store.versions.first(policy.number)
            if own is not None and policy.given:
                return self._lent(first, words)
            return await self._blank(first, policy, words)
        folder = start_folder(words)
        if folder is not None:
            return await self._from_folder(folder)
        lent = self._services.store.versions.start(self._task, words)
        if lent is None:
            raise AdapterError(f"Nobody looked up the version {words!r} that this task plays with.")
        return self._lent(lent, words)

    def _lent(self, version: Version, words: str) -> Version:
        if not is_there(Path(version.path)):
            raise AdapterError(
                f"The version {version.name}, which this task plays with as {words!r}, was deleted.",
                "Submit the task with another one.",
            )
        return replace(version, name=self._name(words, version.checksum))

    async def _blank(self, first: Version, policy: TrainedPolicy, words: str) -> Version:
        path = self._path()
        digest = await asyncio.to_thread(write_blank, Path(policy.published.now().path), path)
        return replace(first, name=self._name(words, digest), number=0, path=str(path), checksum=digest)

    async def _bare(self) -> Version:
        path = self._path()
        digest = await asyncio.to_thread(self._services.write_bare, path)
        return Version(
            id=0,
            policy=0,
            number=0,
            name=self._name(BASE, digest),
            checksum=digest,
            path=str(path),
            size=path.stat().st_size,
        )

    async def _from_folder(self, folder: Path) -> Version:
        path, fingerprint = self._path(), self._services.store.fingerprint
        state = await asyncio.to_thread(read_peft_folder, folder)
        if fingerprint and state.header.base != fingerprint:
            raise AdapterError("the adapter belongs to another base than this home's.", where=str(folder))
        await asyncio.to_thread(begin, state, path)
        digest = checksum(state.adapter)
        return Version(
            id=0,
            policy=0,
            number=0,
            name=self._name(folder.name, digest),
            checksum=digest,
            path=str(path),
            size=path.stat().st_size,
        )

    def _name(self, words: str, digest: str) -> str:
        plain = "".join(c if c.isalnum() else "-" for c in words)[:40]
        return f"task-{self._task}/{self._kind}-{plain}-{digest}-i{self._services.store.incarnation}"

    def _path(self) -> Path:
        folder, incarnation = self._services.home.adapters / f"task-{self._task}", self._services.store.incarnation
        path = folder / f"{self._kind}-{next(self._numbers)}-i{incarnation}.safetensors"
        self._made.append(path)
        return path

    def _kept(self, policy: TrainedPolicy) -> Callable[[], Sequence[Version]]:
        versions = self._services.store.versions
        return lambda: [version for version in versions.candidates(policy.number) if is_there(Path(version.path))]

    def _scores(self, policy: TrainedPolicy) -> Callable[[], dict[int, float]]:
        return lambda: self._services.store.evaluations.scores(policy.number)
