"""Routes policies to endpoints, by the tokens of their turns and the costs at each sampler.

A policy changes its endpoints only between two versions. A deterministic task keeps one endpoint, and one of the same
kind of sampler after a restart.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass

from ...clock import monotonic
from ...errors import Fruitless, WorkerDied
from ...fairness import Mix
from ...rollout import EPISODES, SamplerEndpoint
from ...spec import ONLY, TaskSpec, agent_map_of, as_number, spec_of
from .assignment import Demand, Share, TokenCosts, busy_seconds, guess, mean_of, place, route

AGAIN = 2.0
MANY = 100
"""From this many tasks on, a new one is added to the present routes until the next update, whose time grows with
tasks and samplers."""
PROMPT = 64


@dataclass(frozen=True)
class _Routed:
    spec: TaskSpec
    policies: Mapping[str, tuple[str, ...]]
    """Each served policy with all that its endpoints serve: itself, and pools of its own versions."""
    only: tuple[str, ...]

    @property
    def under_way(self) -> int:
        return min(under_way(spec_of(self.spec, name)) for name in agent_map_of(self.spec).trained)


class Router:
    """Routes of the policies of one incarnation's tasks."""

    def __init__(
        self,
        endpoints: Sequence[SamplerEndpoint],
        costs: Callable[[], Sequence[TokenCosts]],
        mixes: Mapping[int, Mapping[str, Mix]],
        clock: Callable[[], float] = monotonic,
        tell: Callable[[int, str], None] = lambda task, sentence: None,
    ) -> None:
        """``costs`` returns token costs at each endpoint; ``mixes``, by task and policy, grow as turns end.

        ``tell`` gets the samplers of a task's policy when they change, if there are several.
        """
        self._endpoints = {endpoint.name: endpoint for endpoint in endpoints}
        self._arrived = asyncio.Event()
        self._costs = costs
        self._mixes = mixes
        self._clock = clock
        self._tell = tell
        self._told: dict[str, frozenset[str]] = {}
        self._tasks: dict[int, _Routed] = {}
        self._routes: dict[str, tuple[Share, ...]] = {}
        self._busy: dict[str, float] = {}
        self._usual: Demand | None = None
        self._looked = -math.inf

    def join(self, task: int, spec: TaskSpec, kind: str = "") -> str:
        """Add a task that begins to train; a deterministic one continues at a sampler of ``kind``, if given.

        Returns the kind of its only sampler, empty if it may be at any. Raises ``Fruitless`` if there is none.
        """
        only = repeatable_endpoint(tuple(self._endpoints.values()), kind) if spec.train.deterministic else None
        self._tasks[task] = _Routed(spec, served(spec), (only.name,) if only else ())
        if len(self._tasks) < MANY:
            self._looked = -math.inf
        return only.kind if only else ""

    async def served(self, task: int) -> None:
        only = self._tasks[task].only
        while not any(not endpoint.lost for name, endpoint in self._endpoints.items() if name in (only or (name,))):
            await self._arrived.wait()

    def take_in(self, endpoint: SamplerEndpoint) -> None:
        self._endpoints[endpoint.name] = endpoint
        self._looked = -math.inf
        arrived, self._arrived = self._arrived, asyncio.Event()
        arrived.set()

    def leave(self, task: int) -> None:
        routed = self._tasks.pop(task, None)
        for policy in routed.policies if routed is not None else ():
            self._routes.pop(_key(task, policy), None)
            self._told.pop(_key(task, policy), None)

    def shares(self, task: int, policy: str) -> tuple[Share, ...]:
        """The live samplers for the next version of a joined task's policy.

        A version that is only evaluated is served with the first policy. Raises ``WorkerDied`` if no such sampler
        lives.
        """
        if len(self._endpoints) == 1:
            (endpoint,) = self._endpoints.values()
            return self._living((Share(endpoint.name, 1.0),))
        policies = self._tasks[task].policies
        name = policy if policy in policies else next(iter(policies))
        key = _key(task, name)
        now = self._clock()
        lost = {name for name, endpoint in self._endpoints.items() if endpoint.lost}
        routes = self._routes.get(key, ())
        if any(share.sampler in lost for share in routes) or now - self._looked >= AGAIN:
            self._looked = now
            self._look(lost)
        elif not routes:
            self._add(task, lost)
        samplers = frozenset(share.sampler for share in self._living(self._routes.get(key, ())))
        if self._told.get(key) != samplers:
            self._told[key] = samplers
            self._tell(task, self._sentence(name, samplers))
        return self._routes[key]

    def _look(self, lost: Set[str]) -> None:
        costs = [one for one in self._costs() if one.name not in lost]
        demands = [one for one in self.demands() if not one.only or set(one.only) - lost]
        self._routes = route(costs, demands, self._routes) if costs else {}
        self._busy = busy_seconds(costs, demands, self._routes) if costs else {}

    def _add(self, task: int, lost: Set[str]) -> None:
        costs = [one for one in self._costs() if one.name in self._busy and one.name not in lost]
        routed = self._tasks[task]
        demands = self._measured(task, routed) or _guessed(task, routed, self._usual)
        able = [one for one in demands if any(not one.only or cost.name in one.only for cost in costs)]
        place(costs, able, self._busy, self._routes)

    def _living(self, shares: tuple[Share, ...]) -> tuple[Share, ...]:
        if not shares or any(self._endpoints[share.sampler].lost for share in shares):
            raise WorkerDied("No sampler lives that may serve this policy.")
        return shares

    def _sentence(self, policy: str, samplers: frozenset[str]) -> str:
        every = self._endpoints.values()
        named = [f"{endpoint.kind} ({endpoint.name})" for endpoint in every if endpoint.name in samplers]
        whose = "The task" if policy == ONLY else f"The policy {policy}"
        return f"{whose} is sampled by {' and '.join(named)}."

    def demands(self) -> list[Demand]:
        """The demand of every policy with its task's episodes in progress; guessed until one has ended."""
        known = {task: self._measured(task, routed) for task, routed in self._tasks.items()}
        self._usual = mean_of([demand for demands in known.values() for demand in demands])
        return [
            demand
            for task, routed in self._tasks.items()
            for demand in known[task] or _guessed(task, routed, self._usual)
        ]

    def _measured(self, task: int, routed: _Routed) -> list[Demand]:
        mixes = self._mixes.get(task, {})
        seen = {name: mix.of_one for name, mix in mixes.items() if mix.of_one is not None}
        if not seen:
            return []
        demands = []
        for policy, names in routed.policies.items():
            said = [seen[name] for name in names if name in seen]
            read, written = (routed.under_way * math.fsum(tokens) for tokens in zip((0.0, 0.0), *said, strict=True))
            turns = routed.under_way * math.fsum(mixes[name].turns_of_one for name in names if name in mixes)
            demands.append(Demand(_key(task, policy), read, written, routed.only, bool(routed.only), turns))
        return demands


def repeatable_endpoint(endpoints: Sequence[SamplerEndpoint], kind: str) -> SamplerEndpoint:
    """The endpoint of a deterministic task: the first that can repeat itself, of the given ``kind``.

    Two kinds differ in the last bits. Raises ``Fruitless`` if there is none.
    """
    able = [endpoint for endpoint in endpoints if endpoint.repeatable and endpoint.kind == (kind or endpoint.kind)]
    if not able:
        raise Fruitless(
            f"The task is deterministic and was sampled with {kind or 'another sampler'} so far, which this home does"
            " not have any more.",
            f'Set `sampler = "{kind}"` under [rollout] in marlaas.toml, or submit the task anew.',
        )
    return able[0]


def served(spec: TaskSpec) -> dict[str, tuple[str, ...]]:
    """The policies of a task with endpoints, each with itself and the pools of its own versions, which share them."""
    policies = agent_map_of(spec).policies
    return {
        name: (name, *(pool for pool, other in policies.items() if other.pool == name))
        for name, policy in policies.items()
        if not policy.pool
    }


def _key(task: int, policy: str) -> str:
    return f"{task}/{policy}"


def _guessed(task: int, routed: _Routed, usual: Demand | None) -> list[Demand]:
    reply, only = as_number(routed.spec.sampling.max_tokens), routed.only
    return [guess(_key(task, policy), PROMPT, reply, usual, only, bool(only)) for policy in routed.policies]


def under_way(spec: TaskSpec) -> int:
    """Episodes that a task keeps in progress without delays: the limit of its strictest policy."""
    if spec.kind == "eval":
        return min(EPISODES, spec.eval.prompts * spec.eval.samples)
    train = spec.train
    return min(EPISODES, (train.max_staleness + 1) * train.groups_per_step * train.begun_members)
