"""Assigns agents to trained policies, frozen ones and earlier versions."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence, Set
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from math import exp
from pathlib import Path
from random import Random
from statistics import median

from ..adapters.peft_folder import read_adapter
from ..adapters.statefile import begin, checksum, is_there, write_blank
from ..errors import AdapterError, ConfigError
from ..machine.services import Services
from ..models.find import BaseModel
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
        self.source = policy.pool

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
class Participant:
    """One policy that acts in a task: frozen, a pool, or trained."""

    host: PublishedVersions
    """Serves its versions."""
    frozen: Version | None = None
    pool: OpponentPool | None = None
    kept: Callable[[], Sequence[Version]] = tuple
    """The versions of a trained policy with files."""

    def version(self, number: int, attempt: int) -> Version:
        """Raises ``WorkerDied`` if a trained policy is not served."""
        if self.frozen is not None:
            return self.frozen
        return self.pool.draw(number, attempt) if self.pool else self.host.now()

    def known(self, number: int, checksum: str) -> Version | None:
        if self.frozen is not None:
            versions: Sequence[Version] = [self.frozen]
        else:
            versions = self.pool.kept() if self.pool else [self.host.now(), *self.kept()]
        return next((one for one in versions if (one.number, one.checksum) == (number, checksum)), None)


class Participants:
    """One task's policies with one generation of the workers."""

    def __init__(self, agent_map: AgentMap, policies: Mapping[str, Participant]) -> None:
        """``policies``: by name, or by a version's text of ``[eval.agents]``."""
        self.agent_map = agent_map
        self._policies = policies

    def agents_of(self, policy: str) -> tuple[str, ...]:
        return tuple(agent for agent, name in self.agent_map.agents.items() if name == policy)

    def in_pools(self, policy: str, numbers: Sequence[int]) -> Set[int]:
        """Versions in opponent pools; their files stay."""
        pools = (one.pool for one in self._policies.values())
        return set().union(*(pool.needs(numbers) for pool in pools if pool and pool.source == policy))

    def match(self, number: int, attempt: int) -> Match:
        """Raises ``WorkerDied``."""
        versions = {name: policy.version(number, attempt) for name, policy in self._policies.items()}
        return Match(self.agent_map.agents, versions)

    def again(self, speaking: Mapping[str, Speaking]) -> Match | None:
        """None if a version is void or not on the disk."""
        if speaking.keys() != self._policies.keys():
            return None
        versions = {name: policy.known(*speaking[name]) for name, policy in self._policies.items()}
        there = {name: version for name, version in versions.items() if version is not None}
        return Match(self.agent_map.agents, there) if len(there) == len(versions) else None

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
        return Match(agents, {**self.match(0, 0).versions, name: version})

    def replicas(self, match: Match) -> dict[str, Replicas]:
        """By policy; equal for all samples of a group."""
        return {name: Replicas(self._policies[name].host.replicas(version)) for name, version in match.versions.items()}

    def endpoints(self, policy: str) -> list[SamplerEndpoint]:
        """Raises ``WorkerDied`` if there is none."""
        published = self._policies[policy].host
        return published.replicas(published.now())

    @asynccontextmanager
    async def playing(self, match: Match) -> AsyncIterator[None]:
        """Served during the block; old versions may be loaded first."""
        async with AsyncExitStack() as stack:
            hosts = {name: policy.host for name, policy in self._policies.items() if policy.frozen is None}
            for name, published in hosts.items():  # before the first await: a file must not go before it is loaded
                stack.enter_context(published.hold(match.versions[name]))
            for name, published in hosts.items():
                if not published.serves(match.versions[name]):
                    await stack.enter_async_context(published.lent(match.versions[name]))
            yield


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

    async def enter(self, stack: AsyncExitStack) -> dict[str, Participant]:
        """Serve all until ``stack`` is left, and draw from pools. Raises ``AdapterError`` for a lost one."""
        frozen = {name: policy.frozen for name, policy in self._spec.policies.items() if policy.frozen}
        others = (words for words in self._spec.eval.agents.values() if words not in self._spec.policies)
        participants = {}
        for name, words in (frozen | {words: words for words in others}).items():
            version = await self.version(words)
            shares = self._services.router.shares(self._task, name)
            await stack.enter_async_context(self._published.lent(version, shares))
            participants[name] = Participant(self._published, version)
        for name, policy in self._spec.policies.items():
            if policy.pool:
                own = self._policies[policy.pool]
                scores = partial(self._services.store.evaluations.scores, own.number)
                pool = OpponentPool(name, policy, self._spec.train.seed, partial(own.kept, self._services), scores)
                participants[name] = Participant(own.published, pool=pool)
        return participants

    async def leave(self) -> None:
        await asyncio.gather(self._published.clear(), return_exceptions=True)
        for path in self._made:
            with suppress(OSError):
                path.unlink()

    async def version(self, words: str) -> Version:
        """Raises ``AdapterError`` for a lost one."""
        own, store, folder = inside(words, self._spec), self._services.store, start_folder(words)
        if words == BASE and not self._policies:
            return await self._make(BASE, self._services.write_bare)
        if words == BASE or own is not None:
            policy = self._policies[own] if own is not None else next(iter(self._policies.values()))
            first = store.versions.first(policy.number)
            if own is not None and policy.given:
                return self._lent(first, words)
            return await self._make(words, partial(write_blank, Path(policy.published.now().path)), first)
        if folder is not None:
            return await self._make(folder.name, partial(_write_folder, folder, self._services.base))
        lent = store.versions.start(self._task, words)
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

    async def _make(self, words: str, write: Callable[[Path], str], like: Version | None = None) -> Version:
        """A version in a file of this run; ``write`` returns the adapter's checksum."""
        folder, incarnation = self._services.home.adapters / f"task-{self._task}", self._services.store.incarnation
        path = folder / f"{self._kind}-{next(self._numbers)}-i{incarnation}.safetensors"
        self._made.append(path)
        digest = await asyncio.to_thread(write, path)
        size = path.stat().st_size
        made = like or Version(id=0, policy=0, number=0, name="", checksum="", path="", size=size)
        return replace(made, name=self._name(words, digest), number=0, path=str(path), checksum=digest)

    def _name(self, words: str, digest: str) -> str:
        plain = "".join(c if c.isalnum() else "-" for c in words)[:40]
        return f"task-{self._task}/{self._kind}-{plain}-{digest}-i{self._services.store.incarnation}"


def _write_folder(folder: Path, base: BaseModel, path: Path) -> str:
    state = read_adapter(folder, base)
    begin(state, path)
    return checksum(state.adapter)
